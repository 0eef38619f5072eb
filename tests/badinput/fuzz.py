"""Coverage-guided fuzzing of every reader of files, by atheris: python tests/badinput/fuzz.py [--seconds 120]

Whatever the bytes, a reader reads them or raises HeadwiseError; anything else ends the program with the input that did
it. Without atheris it says so and ends well.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    seconds = parser.parse_args().seconds
    if find_spec("atheris") is None:
        print("fuzzing skipped: atheris is not installed (pip install atheris)")
        return
    import atheris

    with atheris.instrument_imports(include=["headwise"], enable_loader_override=False):
        from headwise.errors import HeadwiseError
        from headwise.io.files import read_arrays, read_json
        from headwise.tasks.readers.formats import formats
        from headwise.training.plan import Plan
    from spoiling import MASKS, PLAN, READERS, STUDY

    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    names = [name for name in READERS if name != "parquet"]  # arrow's own reader is not ours to fuzz
    readers = [lambda path, f=formats[name]: list(f.read(path)) for name in names]
    readers += [Plan.read, read_json, read_arrays]
    seeds = [*(READERS[name] for name in names), PLAN, STUDY, MASKS["safetensors"]]
    (folder / "seeds").mkdir()
    for number, seed in enumerate(seeds):
        (folder / "seeds" / str(number)).write_bytes(bytes([number]) + seed)
    warnings.simplefilter("ignore")
    cases = 0

    def one(data: bytes) -> None:
        nonlocal cases
        cases += 1
        if data:
            (folder / "file").write_bytes(data[1:])
            with suppress(HeadwiseError):
                readers[data[0] % len(readers)](folder / "file")

    limits = [f"-max_total_time={seconds}", "-max_len=4000", "-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, str(folder / "seeds")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
