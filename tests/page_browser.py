"""The page at / in a real headless Chromium: `make browser`. Screenshots go to SCREENSHOTS (default build/screenshots).

Needs chromium and chromium-driver (Debian); says so loudly and skips where they are not installed.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

from serving import Server

OUT = pathlib.Path(os.environ.get("SCREENSHOTS", "build/screenshots"))
DRIVER_PORT = 19515


def driver(path, body=None, method=None):
    request = urllib.request.Request(f"http://127.0.0.1:{DRIVER_PORT}{path}", None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["value"]


def main():
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        print("SKIPPED: the page was NOT tested; install chromium and chromium-driver", file=sys.stderr)
        return 0
    OUT.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([chromedriver, f"--port={DRIVER_PORT}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(2)
        with Server("--threads", 1) as server:
            for name, width, height, scheme in (("wide-light", 1200, 1500, "light"), ("wide-dark", 1200, 1500, "dark"),
                                                ("narrow-light", 400, 1900, "light")):
                args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                        f"--window-size={width},{height}"]
                if scheme == "dark":
                    args.append("--force-dark-mode")
                session = driver("/session", {"capabilities": {"alwaysMatch": {
                    "browserName": "chrome", "goog:chromeOptions": {"binary": chromium, "args": args},
                    "goog:loggingPrefs": {"browser": "ALL"}}}})["sessionId"]
                base = f"/session/{session}"

                def script(text):
                    return driver(base + "/execute/sync", {"script": text, "args": []})

                def wait(condition, seconds=60):
                    deadline = time.time() + seconds
                    while not script("return !!(" + condition + ")"):
                        assert time.time() < deadline, condition
                        time.sleep(0.1)

                try:
                    if width < 500:  # windows do not get this narrow; the viewport does
                        driver(base + "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
                            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}})
                    driver(base + "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
                        "features": [{"name": "prefers-color-scheme", "value": scheme}]}})
                    driver(base + "/url", {"url": f"http://127.0.0.1:{server.port}/"})
                    wait("document.getElementById('model').textContent.includes('128 experts')")
                    for value in ("vanilla", "oea"):
                        script(f"document.querySelector('[value={value}]').click()")
                        wait("document.getElementById('policy').textContent.includes("
                             + ("'vanilla'" if value == "vanilla" else "'oea:k0=3'") + ")")
                        script("delete document.body.dataset.done; document.getElementById('tokens').value = 100;"
                               "document.getElementById('go').click()")
                        wait("document.body.dataset.done", 120)
                    texts = script("return [...document.querySelectorAll('#texts p')].map(p => p.textContent)")
                    assert len(texts) == 8 and all(len(t) > 100 for t in texts), texts
                    label = script("return document.getElementById('heat').getAttribute('aria-label')")
                    assert "distinct experts per layer" in label, label
                    # Frames are drawn when the browser gets to it.
                    wait("(() => { const c = document.getElementById('chart'); return [...c.getContext('2d')"
                         ".getImageData(0, 0, c.width, c.height).data].some(v => v) })()", 20)
                    overflow = script("return document.documentElement.scrollWidth > document.documentElement.clientWidth")
                    assert not overflow, f"{name}: the page is wider than the screen"
                    # Every control is reached by the keyboard.
                    reached = script("return [...document.querySelectorAll('button,input,textarea')].every(e => e.tabIndex >= 0)")
                    assert reached
                    errors = [e for e in driver(base + "/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]
                    assert not errors, errors
                    outside = script("return performance.getEntriesByType('resource').map(r => r.name)"
                                     ".filter(n => !n.startsWith(location.origin) && !n.startsWith('data:'))")
                    assert not outside, outside
                    import base64
                    (OUT / f"{name}.png").write_bytes(base64.b64decode(driver(base + "/screenshot")))
                    print("ok:", OUT / f"{name}.png")
                finally:
                    driver(base, method="DELETE")
    finally:
        process.terminate()
        process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
