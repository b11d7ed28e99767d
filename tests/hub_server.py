"""A hub on loopback: what huggingface_hub asks of one, from memory, with a log and with faults."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import time
import types
import urllib.parse
from typing import NamedTuple

import yaml
from huggingface_hub import constants, file_download
from huggingface_hub.hf_file_system import HfFileSystem
from huggingface_hub.utils import _http

from big_align.data.remote import retries

PAGE = 3  # entries of a listing, which the hub gives a thousand at a time
LFS_ENDINGS = (".safetensors", ".bin", ".parquet", ".tar", ".jax_export")
TOKEN = "hf_token"


class Request(NamedTuple):
    method: str
    path: str
    range: str | None

    @property
    def file(self):
        """The file of a repository that is asked for; None for any other request."""
        found = re.search("/resolve/[^/]+/(.+)", urllib.parse.unquote(self.path))
        return found and found[1]


class Repository:
    """Commits by their ids, each with files by name; what names them; and who may read them."""

    def __init__(self, files):
        self.commits, self.refs, self.gated, self.private = {}, {}, False, False
        self.commit(files)

    def commit(self, files, ref="main"):
        listing = json.dumps({name: hashlib.sha1(x).hexdigest() for name, x in files.items()})
        sha = hashlib.sha1(f"{len(self.commits)}{listing}".encode()).hexdigest()
        self.commits[sha], self.refs[ref] = dict(files), sha
        return sha

    def find(self, revision):
        return self.refs.get(revision, revision if revision in self.commits else None)


class Fault(NamedTuple):
    """What happens to the next requests that match: a status, or a connection cut after bytes."""

    pattern: str
    times: int
    status: int = 0
    headers: dict = {}
    cut_after: int | None = None


class Hub:
    """The state of the server; `url` is its endpoint."""

    def __init__(self):
        self.repositories, self.blobs, self.log, self.faults = {}, {}, [], []
        self.lock = threading.Lock()

    def add(self, id, folder=None, kind="model", files=None):
        """Adds a repository with the files of a folder, or these."""
        files = dict(files or {})
        for path in sorted(folder.rglob("*")) if folder else ():
            if path.is_file():
                files[path.relative_to(folder).as_posix()] = path.read_bytes()
        self.repositories[kind, id] = Repository(files)
        return self.repositories[kind, id]

    def fail(self, pattern, times=1, **how):
        self.faults.append(Fault(pattern, times, **how))

    def take_fault(self, request):
        with self.lock:
            for number, fault in enumerate(self.faults):
                if fault.times and re.search(fault.pattern, f"{request.method} {request.path}"):
                    self.faults[number] = fault._replace(times=fault.times - 1)
                    return fault
        return None

    @property
    def fetched(self):
        """The files of repositories that were asked for, each once."""
        return {each.file for each in self.log if each.file}


class Answer(Exception):
    def __init__(self, status, content=b"", **headers):
        super().__init__(status)
        self.status, self.headers = status, {k.replace("_", "-"): v for k, v in headers.items()}
        self.content = content if isinstance(content, bytes) else json.dumps(content).encode()


def refuse(status, code="", message=""):
    more = {"X_Error_Code": code} if code else {}
    return Answer(status, {"error": message or code}, X_Error_Message=message or code, **more)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def answer(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.request_ = Request(self.command, self.path, self.headers.get("Range"))
        self.hub.log.append(self.request_)
        fault = self.hub.take_fault(self.request_)
        try:
            if fault and fault.status:
                raise Answer(fault.status, {"error": "a fault"}, **fault.headers)
            path, _, query = self.path.partition("?")
            self.query = dict(urllib.parse.parse_qsl(query))
            self.route(urllib.parse.unquote(path), path)
            raise refuse(404, "NoSuchPath", self.path)
        except Answer as answer:
            self.send(answer, fault)
        except BrokenPipeError:
            pass

    def send(self, answer, fault):
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        content = b"" if self.command == "HEAD" else answer.content
        if fault and fault.cut_after is not None:
            content, self.close_connection = content[: fault.cut_after], True
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)

    def route(self, path, raw):
        patterns = {
            r"/api/(models|datasets)/([^/]+/[^/]+?)(?:/revision/(.+))?": self.tell_repository,
            r"/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?": self.list_tree,
            r"/api/(models|datasets)/([^/]+/[^/]+)/paths-info/([^/]+)": self.list_paths,
            r"/api/(models|datasets)/([^/]+/[^/]+)/refs": self.list_refs,
            r"/api/(models|datasets)/([^/]+/[^/]+)/preupload/([^/]+)": self.preupload,
            r"/api/(models|datasets)/([^/]+/[^/]+)/commit/([^/]+)": self.commit,
            r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)": self.resolve,
            r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch": self.batch,
        }
        if path == "/api/repos/create":
            self.create()
        if path == "/api/validate-yaml":
            self.validate()
        if path == "/api/whoami-v2":
            self.check_token()
            raise Answer(200, {"name": "somebody", "type": "user", "orgs": []})
        if found := re.fullmatch(r"/(cdn|lfs)/([0-9a-f]{64})", path):
            self.transfer(*found.groups())
        for pattern, act in patterns.items():
            # a revision such as refs/convert/parquet is one part of the path, with %2F
            if found := re.fullmatch(pattern, raw):
                act(*(part and urllib.parse.unquote(part) for part in found.groups()))

    @property
    def authorized(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def check_token(self):
        if not self.authorized:
            raise refuse(401, "", "Invalid username or password.")

    def find(self, kind, id, revision="main", owned=False):
        repository = self.hub.repositories.get(
            ("dataset" if "dataset" in (kind or "") else "model", id)
        )
        if repository is None or (repository.private and not self.authorized):
            raise refuse(404 if self.authorized else 401, "RepoNotFound", "Repository not found")
        if owned:
            self.check_token()
        sha = repository.find(revision or "main")
        if sha is None:
            raise refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, sha, repository.commits[sha]

    def tell_repository(self, kind, id, revision):
        repository, sha, files = self.find(kind, id, revision)
        siblings = [{"rfilename": name} for name in files]
        told = {"id": id, "sha": sha, "private": repository.private, "tags": [], "downloads": 0}
        raise Answer(200, {**told, "siblings": siblings, "gated": repository.gated})

    def describe(self, name, content):
        told = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
        if name.endswith(LFS_ENDINGS):
            oid = hashlib.sha256(content).hexdigest()
            told |= {"lfs": {"oid": oid, "size": len(content), "pointerSize": 134}}
        return {**told, "path": name}

    def list_tree(self, kind, id, revision, folder):
        _, _, files = self.find(kind, id, revision)
        prefix, entries = f"{folder}/" if folder else "", {}
        for name in sorted(files):
            if not name.startswith(prefix):
                continue
            parts = name.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                inner = prefix + "/".join(parts[:depth])
                entries[inner] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": inner}
            entries[name] = self.describe(name, files[name])
        if not entries and folder:
            raise refuse(404, "EntryNotFound", folder)
        if self.query.get("recursive", "").lower() != "true":
            entries = {k: v for k, v in entries.items() if "/" not in k.removeprefix(prefix)}
        first = int(self.query.get("cursor", 0))
        page, more = list(entries.values())[first : first + PAGE], {}
        if first + PAGE < len(entries):
            query = urllib.parse.urlencode({**self.query, "cursor": first + PAGE})
            more = {"Link": f'<{self.hub.url}{self.path.partition("?")[0]}?{query}>; rel="next"'}
        raise Answer(200, page, **more)

    def list_paths(self, kind, id, revision):
        _, _, files = self.find(kind, id, revision)
        wanted = json.loads(self.body)["paths"] if self.body[:1] == b"{" else (
            urllib.parse.parse_qs(self.body.decode())["paths"])  # fmt: skip
        wanted = [wanted] if isinstance(wanted, str) else wanted
        raise Answer(200, [self.describe(name, files[name]) for name in wanted if name in files])

    def list_refs(self, kind, id):
        repository = self.find(kind, id)[0]
        named = [{"name": k, "ref": k, "targetCommit": v} for k, v in repository.refs.items()]
        raise Answer(200, {"branches": named, "converts": [], "tags": []})

    def resolve(self, kind, id, revision, name):
        repository, sha, files = self.find(kind, id, revision)
        if repository.gated and not self.authorized:
            raise refuse(401, "GatedRepo", "Access to this repository is restricted.")
        if name not in files:
            raise Answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        content = files[name]
        if not name.endswith(LFS_ENDINGS):
            etag = hashlib.sha1(content).hexdigest()
            self.give(content, ETag=f'"{etag}"', X_Repo_Commit=sha)
        oid = hashlib.sha256(content).hexdigest()
        self.hub.blobs[oid] = content
        linked = {"X_Linked_Etag": f'"{oid}"', "X_Linked_Size": str(len(content))}
        # another host, to which no token may be sent
        raise Answer(302, Location=f"{self.hub.cdn}/cdn/{oid}", X_Repo_Commit=sha, **linked)

    def give(self, content, **headers):
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not found:
            raise Answer(200, content, Accept_Ranges="bytes", **headers)
        first, last = int(found[1]), int(found[2] or len(content) - 1)
        if first >= len(content):
            raise Answer(416, b"", Content_Range=f"bytes */{len(content)}")
        part = content[first : last + 1]
        where = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        raise Answer(206, part, Content_Range=where, Accept_Ranges="bytes", **headers)

    def transfer(self, kind, oid):
        if kind == "cdn":
            assert not self.headers.get("Authorization")
            self.give(self.hub.blobs[oid], ETag=f'"{oid}"')
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.blobs[oid] = self.body
        raise Answer(200)

    def create(self):
        self.check_token()
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or "somebody"
        id, kind = f"{owner}/{wanted['name']}", wanted.get("type") or "model"
        if owner != "somebody":
            raise refuse(403, "", "You don't have the rights to create a model there")
        if (kind, id) in self.hub.repositories:
            raise Answer(409, {"error": "exists", "url": f"{self.hub.url}/{id}"})
        self.hub.add(id, kind=kind).private = wanted.get("visibility") == "private"
        raise Answer(200, {"url": f"{self.hub.url}/{id}", "name": id})

    def validate(self):
        content = json.loads(self.body)["content"]
        head = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            valid = head is not None and isinstance(yaml.safe_load(head[1]), dict)
        except yaml.YAMLError:
            valid = False
        if not valid:
            raise Answer(400, {"errors": [{"message": "no front matter"}], "warnings": []})
        raise Answer(200, {"errors": [], "warnings": []})

    def preupload(self, kind, id, revision):
        self.find(kind, id, revision, owned=True)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LFS_ENDINGS) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body)["files"]
        ]
        raise Answer(200, {"files": files})

    def batch(self, kind, id):
        self.find(kind, id, owned=True)
        objects = [
            {
                **each,
                "actions": {"upload": {"href": f"{self.hub.cdn}/lfs/{each['oid']}", "header": {}}},
            }
            for each in json.loads(self.body)["objects"]
        ]
        raise Answer(200, {"transfer": "basic", "objects": objects})

    def commit(self, kind, id, revision):
        repository, _, files = self.find(kind, id, revision, owned=True)
        made = dict(files)
        for line in map(json.loads, self.body.splitlines()):
            told = line["value"]
            if line["key"] == "file":
                made[told["path"]] = base64.b64decode(told["content"])
            if line["key"] == "lfsFile":
                made[told["path"]] = self.hub.blobs[told["oid"]]
        sha = repository.commit(made, revision)
        url = f"{self.hub.url}/{id}/commit/{sha}"
        raise Answer(200, {"success": True, "commitOid": sha, "commitUrl": url})


@contextlib.contextmanager
def serve(hub):
    """Serves a hub until the end of the block; it forgets nothing, and may be served again."""
    handler = type("OwnHandler", (Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", getattr(hub, "port", 0)), handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    hub.url, hub.cdn = (f"http://{host}:{hub.port}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def list_variables(hub, cache):
    """Returns the environment of a program that uses this hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def use(hub, cache, monkeypatch):
    """Makes huggingface_hub, which reads its variables when it is imported, use a hub here."""
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_TOKEN_PATH": str(cache / "token"),
        "HF_STORED_TOKENS_PATH": str(cache / "tokens"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(constants, name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hub.pauses = []
    clock = types.SimpleNamespace(sleep=hub.pauses.append, time=time.time, monotonic=time.monotonic)
    for module in (file_download, _http, retries):
        monkeypatch.setattr(module, "time", clock)
    HfFileSystem.clear_instance_cache()
