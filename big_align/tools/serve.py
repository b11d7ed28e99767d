"""Serves a page on this machine for searching an index.

For example:
  python -m big_align.tools.serve --index=index
  python -m big_align.tools.serve --index=index --host=0.0.0.0 --token="$(openssl rand -hex 16)"

The page takes texts, uploads and weights, and shows what was found, with "more like this". On any
address but 127.0.0.1, everyone needs the token, which is sent over the network unencrypted: put a
proxy with TLS in front. It requires pip install -e '.[serve]'.
"""

import argparse
import contextlib
import socket
import sys
from urllib.parse import quote

from big_align.core.errors import UserError, WrongValue
from big_align.tools import command

TOKEN_LEAST = 16  # characters


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("serve", __doc__)
    add = parser.add_argument
    add(
        "--index",
        required=True,
        help="the folder that big_align.tools.index wrote, or lancedb:PLACE",
    )
    add("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="the port; 0 for any free one (%(default)s)")
    add("--token", help="a secret that users need; required unless --host is only this machine")
    add("--max_upload", type=float, default=20, help="maximum MiB per upload (%(default)s)")
    add("--max_pixels", type=int, default=50_000_000, help="most pixels per upload (%(default)s)")
    add("--model", help="where the model of the index is now (default: where it was)")
    return command.run(serve, parser.parse_args(arguments))


def serve(options: argparse.Namespace) -> None:
    """Serves until it is stopped."""
    from big_align.data.images.decoding import MAX_PIXELS

    try:
        import uvicorn

        from big_align.use.search import server
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install -e '.[serve]'") from error
    from big_align.use.search.search_index import load_index

    local = options.host in server.LOOPBACK
    if not local and len(options.token or "") < TOKEN_LEAST:
        raise WrongValue(
            f"--host={options.host} lets others in: give --token=, at least {TOKEN_LEAST} "
            "characters that cannot be guessed"
        )
    if options.token and not (options.token.isascii() and options.token.isprintable()):
        raise WrongValue("--token must be of ASCII characters, which a cookie can hold")
    if options.max_upload <= 0 or not 0 < options.max_pixels <= MAX_PIXELS:
        raise WrongValue(
            f"--max_upload must be above 0, and --max_pixels from 1 to {MAX_PIXELS}, which models "
            "take"
        )
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listening = socket.create_server((options.host, options.port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host={options.host} --port={options.port}: {error}") from error
    with listening:
        index = load_index(options.index, options.model)
        limits = int(options.max_upload * 2**20), options.max_pixels
        app = server.make_app(index, options.token, *limits)
        query = f"?token={quote(options.token, safe='')}" if options.token else ""
        port = listening.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"http://{host}:{port}/{query}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # how it is stopped
            uvicorn.Server(uvicorn.Config(app, log_level="warning", **server.SETTINGS)).run(
                sockets=[listening]
            )


if __name__ == "__main__":
    sys.exit(main())
