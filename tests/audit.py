"""Known holes in what is installed, by pip-audit; where advisories cannot be asked for, it says so and ends well."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec


def main() -> int:
    if find_spec("pip_audit") is None:
        print("dependency audit skipped: pip-audit is not installed")
        return 0
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        found = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, json.JSONDecodeError, KeyError):
        print("dependency audit skipped: the advisory service cannot be reached")
        return 0
    asked = [package for package in found if "vulns" in package]
    holes = [(package["name"], package["version"], hole["id"]) for package in asked for hole in package["vulns"]]
    if len(asked) * 2 < len(found):
        print(f"dependency audit skipped: the advisory service knows {len(asked)} of {len(found)} packages")
    else:
        print(f"dependency audit: {len(asked)} of {len(found)} packages asked for, {len(holes)} known holes")
    for name, version, hole in holes:
        print(f"  {name} {version}: {hole}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
