"""How fast other libraries show spans, beside `benchmarks/page.py` for the page itself.

In frontend/: `npm ci`, `npm install --no-save echarts@6`, then `python compare/compare.py`. Writes
a picture of each into the folder that is given, or the working directory: frames are worth nothing
where spans are missing.
"""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Final

HERE: Final = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))

from browser import open_browser  # noqa: E402 - found by the line above

__all__: list[str] = []

_HTML: Final = (
    '<!doctype html><body style="margin:0"><div id="host"></div><script src="{}"></script>'
)
# Fires the wheel once a frame: in, to and fro, out. Returns the milliseconds of each frame.
_DRIVE: Final = """async () => {
  const canvas = document.querySelector("canvas");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const turn = (deltaX, deltaY) => {
    const at = {deltaX, deltaY, clientX: 500, clientY: 100, bubbles: true, cancelable: true};
    canvas.dispatchEvent(new MouseEvent("mousemove", at));
    canvas.dispatchEvent(new WheelEvent("wheel", at));
  };
  const frames = [];
  const started = performance.now();
  let last = await frame();
  for (let k = 0; k < 240 && performance.now() - started < 20000; k++) {
    if (k < 60) turn(0, -40); else if (k < 180) turn(k % 60 < 30 ? 60 : -60, 0); else turn(0, 40);
    const now = await frame();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def main() -> None:
    """Measure both libraries with 20,000 and 200,000 spans."""
    pictures = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    with open_browser() as browser, tempfile.TemporaryDirectory() as folder:
        for name in ("flame-chart", "echarts"):
            script = pathlib.Path(folder) / f"{name}.js"
            program = HERE.parent / "node_modules" / ".bin" / "esbuild"
            source = HERE / f"{name}.mjs"
            subprocess.run(  # noqa: S603 - no input of others
                [program, source, "--bundle", "--minify", f"--outfile={script}"],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            (script.with_suffix(".html")).write_text(_HTML.format(script.name), encoding="utf-8")
            for count in (20_000, 200_000):
                page = browser.new_page(viewport={"width": 1280, "height": 720})
                page.goto(f"{script.with_suffix('.html').as_uri()}?n={count}")
                page.wait_for_function("window.firstPicture", timeout=120_000)
                page.screenshot(path=pictures / f"{name}-{count}.png")
                first_ms = page.evaluate("window.firstPicture")
                frames_ms = page.evaluate(_DRIVE)
                slow_ms = statistics.quantiles(frames_ms, n=20)[-1]
                print(
                    f"{name:<12}{count:>8,} spans  first picture {first_ms:>6.0f} ms  "
                    f"{1000 / statistics.fmean(frames_ms):>5.1f} frames/s  p95 {slow_ms:.0f} ms",
                    flush=True,
                )
                page.close()


if __name__ == "__main__":
    main()
