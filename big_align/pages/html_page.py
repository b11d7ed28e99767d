"""The style of single-file pages, light and dark, for screens and phones."""

import html

STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #fff; --ink: #1b1d21; --soft: #666b75;
  --line: #e3e4e8; --bar: #3f6fb5; --warn: #c2571a; --chip: #eef2f8; --mark: #d9dbe0;
  --right: #157f33; --c0: #3f6fb5; --c1: #d1701c; --c2: #2f8f5b; --c3: #a44bb0; --c4: #b3402f;
  --c5: #7a6a10; --c6: #148a94; --c7: #6b6f78; }
@media (prefers-color-scheme: dark) { :root { --paper: #131417; --card: #1c1e22; --ink: #e8e9ec;
  --soft: #9aa0ab; --line: #2e3138; --bar: #7ba6e3; --warn: #f0975a; --chip: #27303d;
  --mark: #3d414a; --right: #58c77b; --c0: #7ba6e3; --c1: #f0a060; --c2: #67c890; --c3: #d08add;
  --c4: #ef8576; --c5: #d6c25a; --c6: #5fc8d2; --c7: #a9aeb8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem 5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 3rem 0 .2rem; }
h3 { font-size: 1rem; margin: 2rem 0 .6rem; } p { margin: .2rem 0; }
.soft, figcaption, th { color: var(--soft); } code { overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.8rem, 1fr)); gap: .7rem;
  margin: 1.2rem 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.tile { padding: .7rem .9rem; } .tile b { display: block; font-size: 1.4rem; font-weight: 600;
  white-space: nowrap; font-variant-numeric: tabular-nums; } .tile.warn b { color: var(--warn); }
.tile span { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: .9rem; }
figure { margin: 0; } figure.chart { padding: .9rem 1rem; } svg { display: block; width: 100%; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } svg .bar { fill: var(--bar); }
svg .over { fill: var(--warn); } svg line { stroke: var(--line); } svg .mark { stroke: var(--warn);
  stroke-dasharray: 3 3; } svg .note { fill: var(--warn); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 500; }
td, th { padding: .45rem .8rem .45rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; font-size: .92rem; } td:first-child { font-variant-numeric: tabular-nums;
  white-space: nowrap; width: 6rem; }
"""


HEAD = (
    '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width='
    'device-width, initial-scale=1"><meta http-equiv=Content-Security-Policy content="default-src '
    "'none'; img-src data:; style-src 'unsafe-inline'\">"
)
"""The beginning of every page: whatever is written into one, a browser fetches and runs nothing."""


def write_frame(title: str, style: str, body: str) -> str:
    """Returns a page that needs no other files.

    Args:
      title: title of the page.
      style: styles in addition to `STYLE`.
      body: HTML of the body.
    """
    return (
        f"{HEAD}<title>{html.escape(title)}</title><style>{STYLE}{style}</style><body>{body}</body>"
        "</html>\n"
    )
