"""Runs the cases on this code and on an earlier commit, and prints what each said.

    python -m tests.cases.on_both [--commit=83fa47e] [--marker="not long"] [FILE ...]

A case is a fault that users met: it fails on the commit that had the fault and passes here. The
earlier commit is checked out into a temporary folder, and the cases of this one are copied into it.
Exits with 1 if a case passes there or fails here.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).parents[2]
CASES = "tests/cases"


def outcomes(root: pathlib.Path, files: list[str], marker: str) -> dict[str, tuple[str, str]]:
    """Of each case "passed", "failed", "error" or "skipped", and the first line of the reason."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"-m={marker}", f"--junitxml={report}"]
        subprocess.run(
            [*command, "-p", "no:cacheprovider", *files],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        found = {}
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            what = next((x for x in case if x.tag in ("failure", "error", "skipped")), None)
            outcome = (
                {"failure": "failed"}.get(what.tag, what.tag) if what is not None else "passed"
            )
            reason = what.get("message", "").splitlines() if what is not None else []
            found[name] = outcome, reason[0][:110] if reason else ""
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="83fa47e", help="the code that had the faults")
    parser.add_argument("--marker", default="not long")
    parser.add_argument("files", nargs="*", default=[CASES])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = pathlib.Path(folder, "old")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(old), args.commit], check=True)
        try:
            shutil.copytree(ROOT / CASES, old / CASES, dirs_exist_ok=True)
            before = outcomes(old, args.files, args.marker)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    now = outcomes(ROOT, args.files, args.marker)
    wrong = [
        name
        for name, (outcome, _) in now.items()
        if outcome != "passed" or before.get(name, ("missing",))[0] != "failed"
    ]
    for name, (outcome, _) in now.items():
        then, reason = before.get(name, ("missing", ""))
        print(f"{'!' if name in wrong else ' '} {then:8}{outcome:8}{name}\n      {reason}")
    print(f"{len(now)} cases, {len(now) - len(wrong)} fail there and pass here")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
