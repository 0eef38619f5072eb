"""Models and results on the Hugging Face Hub: pushed with a card, opened by name.

Only plain data is exchanged: safetensors and JSON, no local paths, no code.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, first_line
from headwise.heads.gates import Heads
from headwise.integrations.cards import model_card, results_card, without_places
from headwise.io.files import read_json, write, write_json
from headwise.io.records import Results
from headwise.models.loading import ABOUT, at_root, trained_folder
from headwise.models.multitask import MultiTaskModel

NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def push_to_hub(
    model: MultiTaskModel,
    repo: str,
    *,
    scores: Mapping[str, Any] | None = None,
    plan: Any = None,
    base: str = "",
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Write a model and its card to a repository on the Hub; returns the address of the commit.

    Args:
        model: a model with output heads.
        repo: ``user/name``; created if it does not exist.
        scores: results of `headwise.evaluate` by task, for the card.
        plan: the training plan, for the card.
        base: the checkpoint that training started from, for the card.
        private: whether a new repository is private.
        token: of the Hub (default: the one of ``hf auth login``).
        endpoint: another Hub (default: ``HF_ENDPOINT``).

    Example:
        >>> push_to_hub(model, "me/reviews", scores={"reviews": evaluate(model, "reviews")})
        'https://huggingface.co/me/reviews/commit/...'
    """
    _require_name(repo)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model.save_pretrained(Path(scratch) / "model")
        at_root(folder)
        about = without_places(read_json(folder / ABOUT))
        write_json(folder / ABOUT, about)
        opens = f'headwise.MultiTaskModel.from_pretrained("{repo}")'
        heads = Heads.of(model.encoder).alive
        counted = {"all": heads.numel(), "cut": int((~heads).sum())}
        settings: Any = asdict(plan) if is_dataclass(plan) and not isinstance(plan, type) else plan
        card = model_card(about, repo, base, _scores(scores), counted, settings, opens)
        write(folder / "README.md", card)
        return _upload(folder, repo, "model", private, token, endpoint)


def push_results(
    results: Results, repo: str, *, private: bool = False, token: str | None = None, endpoint: str | None = None
) -> str:
    """Write records to a data set on the Hub as one parquet file with a card; returns the address of the commit."""
    _require_name(repo)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "results"
        folder.mkdir()
        results.pack(folder / "results.parquet")
        write(folder / "README.md", results_card(repo, results))
        return _upload(folder, repo, "dataset", private, token, endpoint)


def from_pretrained(
    repo: str, *, revision: str | None = None, token: str | None = None, endpoint: str | None = None
) -> MultiTaskModel:
    """Open a model that headwise pushed to the Hub, ready to predict; `add_data` adds rows.

    Example:
        >>> from_pretrained("me/reviews").predict("reviews", ["what a film"])[0].label
        'good'
    """
    _require_name(repo)
    return MultiTaskModel.load(trained_folder(repo, revision, token, endpoint))


def _upload(folder: Path, repo: str, kind: str, private: bool, token: str | None, endpoint: str | None) -> str:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint, token=token)
    try:
        api.create_repo(repo, repo_type=kind, private=private or None, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo, repo_type=kind, folder_path=folder, commit_message="Write with headwise", delete_patterns="*"
        )
    except Exception as error:  # huggingface_hub has many errors; a user needs one line
        hint = "hf auth login, or token=..."
        raise HeadwiseError(
            f"cannot write {repo!r} to the Hub: {first_line(error)}", "a token with write access", hint
        ) from error
    return str(done.commit_url)


def _require_name(repo: str) -> None:
    if not NAME.fullmatch(repo):
        raise HeadwiseError(f"a repository named {repo!r}", "user/name", "me/reviews")


def _scores(scores: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    found = {}
    for task, score in (scores or {}).items():
        low, high = score.interval()
        found[task] = {"metric": score.metric, "value": score.value, "low": low, "high": high, "n": score.examples}
    return found
