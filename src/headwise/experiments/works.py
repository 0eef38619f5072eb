"""Works shared by sweeps and recipes: train, dissociate, study."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseError, unknown
from headwise.experiments.jobs import Job, Place, task_named, work_named
from headwise.io.files import digest, plain
from headwise.io.identity import checkpoint as checkpoint_hash
from headwise.io.identity import data
from headwise.measuring.evaluate import evaluate
from headwise.models.causality import pooling_by_name
from headwise.models.device import default_device
from headwise.models.multitask import MultiTaskModel
from headwise.models.opening import open_subject
from headwise.reporting import report
from headwise.scoring.importance import importance
from headwise.study.stages import Settings
from headwise.study.study import Study
from headwise.tasks.catalog.known import data_folder
from headwise.training import checkpoint
from headwise.training.loop import branch_step, fit
from headwise.training.methods import methods
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

RUNGS = (0.1, 0.3, 1.0)  # of successive halving: fractions of the training rows
TUNING = ("axes", "rungs", "seed")  # what a tune job has beside a training's config


def training(
    model: str,
    tasks: Sequence[str],
    plan: Plan,
    method: Mapping[str, Any] | None = None,
    *,
    at: Mapping[str, str],
    start: Job | None = None,
    branch: Job | None = None,
    marks: Sequence[float] = (),
    pooling: str | None = None,
    max_length: int = 128,
    output_heads: str = "linear",
    dev: int | None = None,
) -> Job:
    """A job that trains one model on several tasks, with everything that determines it.

    Args:
        model: name of the model; ``at[model]`` is its folder (default: a Hub name).
        tasks: names in the catalog.
        plan: training settings.
        method: for example ``{"name": "iat", "delta": 0.1}`` (default: plain training).
        at: folders by name, and ``data``.
        start: a training whose model this one starts from.
        branch: a plain training of the same model, tasks and plan with a mark at the method's delta; this training
            branches from it.
        marks: fractions of training, counted from its end, where others can branch.
        pooling: pooling of the model (default: last for causal models, cls otherwise, as measured).
        max_length: maximum number of tokens.
        output_heads: linear or native, of the model.
        dev: development rows of each task that the trained model is scored on (default: all).
    """
    config = {"model": model, "weights": weights_of(model, at), "tasks": {n: data_of(n, at) for n in tasks}}
    pooling = pooling or pooling_by_name(model, at.get(model, model))
    config |= {"plan": plain(asdict(plan)), "method": dict(method) if method else None, "pooling": pooling}
    config |= {"max_length": max_length, "start": start.key if start else None}
    config |= {} if output_heads == "linear" else {"output_heads": output_heads}  # keys of linear ones stay
    config |= {"dev": dev} if dev else {}
    # Branches and marks do not change the result, so they are not part of the config.
    way = {"marks": ",".join(map(str, marks)), **({"branch": branch.key} if branch else {})}
    return Job("train", config, {**at, **way}, tuple(job for job in (start, branch) if job))


def weights_of(model: str, at: Mapping[str, str]) -> str | None:
    """The hash of a model's files, or its commit on the Hub; None if neither is available."""
    return checkpoint_hash(at.get(model, model))


_digests: dict[tuple[str, str, bool], str | None] = {}


def data_of(name: str, at: Mapping[str, str], whole: bool = False) -> str | None:
    """The hash of a task's training and development rows, or of all; None if its data is not on this machine.

    Rows are read again only if the user's file changes.
    """
    file = Path(name.partition("=")[2].rpartition(":")[0] or name.partition("=")[2])
    where = (name, _state(file.expanduser()) if "=" in name else str(data_folder(at.get("data"))), whole)
    if where not in _digests:
        try:
            task = task_named(name, at)
            _digests[where] = data(task, task.splits if whole else ("train", "dev"))
        except HeadwiseError:
            _digests[where] = None
    return _digests[where]


def _state(path: Path) -> str:
    """Names, times and sizes of the files in a folder, or of a file and its siblings that share its stem."""
    stem, beside = path.name.partition(".")[0], path.parent.iterdir() if path.parent.is_dir() else ()
    files = path.rglob("*") if path.is_dir() else (file for file in beside if file.name.startswith(stem))
    return str([(str(f.absolute()), f.stat().st_mtime_ns, f.stat().st_size) for f in sorted(files) if f.is_file()])


def asked(work: str, config: Mapping[str, Any], at: Mapping[str, str]) -> Job:
    """A job from user input: task names and some fields of a plan; hashes and defaults are filled in."""
    work_named(work)  # unknown works raise before anything runs
    given = dict(config)
    if work not in ("train", "study", "tune", "importance"):
        return Job(work, given, dict(at))
    if work == "importance":
        return _scoring(given, at)
    for name in ("model", "tasks"):
        if not given.get(name):
            raise HeadwiseError(f"the config of {work} has no {name}", 'model = "…" and tasks = ["…", "…"]')
    if not isinstance(given["model"], str):
        raise HeadwiseError(f"model = {given['model']!r}", "a folder or a name", "several are an axis of [grid]")
    named = isinstance(given["tasks"], list | tuple) and all(isinstance(name, str) for name in given["tasks"])
    if not named or not isinstance(given.get("plan", {}), Mapping):
        seen = f"tasks = {given['tasks']!r}, plan = {given.get('plan', {})!r}"
        raise HeadwiseError(seen, "a list of names, and a table", 'tasks = ["sst2", "qnli"]')
    model, tasks, plan = given.pop("model"), given.pop("tasks"), Plan().with_(**given.pop("plan", {}))
    if work in ("train", "tune"):
        way = {name: given.pop(name) for name in TUNING if work == "tune" and name in given}
        _check_names(given, ("method", "pooling", "max_length", "output_heads", *(TUNING if work == "tune" else ())))
        if isinstance(given.get("method"), str):
            given["method"] = {"name": given["method"]}
        method_of(given.get("method"))  # invalid methods raise before anything runs
        job = training(model, tasks, plan, at=at, **given)
        return job if work == "train" else _tuning(job, **way)
    _check_names(given, [f.name for f in fields(Settings) if f.name != "plan"])
    full = {"model": model, "weights": weights_of(model, at), "tasks": {n: data_of(n, at) for n in tasks}}
    return Job("study", {**full, "plan": plain(asdict(plan)), **given}, dict(at))


def _scoring(given: Mapping[str, Any], at: Mapping[str, str]) -> Job:
    """The job that scores a model's heads for one task."""
    for name in ("model", "task"):
        if not isinstance(given.get(name), str):
            raise HeadwiseError(f"{name} = {given.get(name)!r}", "a name", 'model = "…" and task = "…"')
    model, task = given["model"], given["task"]
    return Job("importance", {**given, "weights": weights_of(model, at), "data": data_of(task, at)}, dict(at))


def _tuning(training: Job, axes: Mapping[str, Any] | None = None, rungs: Sequence[float] = RUNGS, seed: int = 0) -> Job:
    """The job that chooses a training's settings among the combinations of some axes."""
    if not axes:
        raise HeadwiseError("a tune job without axes", 'axes = { "plan.lr" = [2e-5, 1e-4], pooling = ["cls", "mean"] }')
    way = {"axes": plain(dict(axes)), "rungs": list(rungs), "seed": seed}
    return Job("tune", {**training.config, **way}, training.at)


def _check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown("field of a sweep's config", name, ("model", "tasks", "plan", *known))


def opened(place: Place, config: Mapping[str, Any], key: str | None = None) -> MultiTaskModel:
    """The model of a training job: the one saved under ``key``, or untrained with new output heads."""
    tasks = [place.task(name) for name in config["tasks"]]
    plan = Plan(**config["plan"])
    if key is not None:
        model = MultiTaskModel.load(place.model_of(key), tasks)
    else:
        shape = {name: config[name] for name in ("pooling", "max_length", "output_heads") if name in config}
        model = MultiTaskModel.from_pretrained(place.encoder(config["model"]), tasks, seed=plan.seed, **shape)
    return model.to(default_device(place.device))


def train(place: Place) -> dict[str, Any]:
    """Train, save the model, and evaluate it on the development data of every task."""
    config = place.config
    _loaded.clear()  # its memory is needed
    made = opened(place, config, config.get("start"))
    method = method_of(config["method"])
    marks = [float(share) for share in place.at.get("marks", "").split(",") if share]
    how = {"device": place.device, "progress": place.progress, "marks": marks, "branch": _branch(place, method)}
    history = fit(made, Plan(**config["plan"]), method, out=place.folder, **how)
    made.save_pretrained(place.kept)
    scores = {name: scored(made, name, limit=config.get("dev")) for name in made.tasks}
    home = place.folder / "checkpoints"
    stay = {checkpoint.place(home, branch_step(history.steps, share)) for share in marks}
    for path in checkpoint.list_all(home):  # a sweep has many checkpoints, and only marks are read again
        if path not in stay:
            shutil.rmtree(path, ignore_errors=True)
    chosen = getattr(method, "chosen", {})  # settings that the method chose itself
    result = {"scores": scores, "steps": history.steps, "curves": _thinned(history.curves())}
    return result | ({"chosen": plain(chosen)} if chosen else {})


def method_of(settings: Mapping[str, Any] | None) -> Method:
    """A method by name and settings (default: plain training)."""
    if not settings:
        return Method()
    if not isinstance(settings, Mapping) or "name" not in settings:
        raise HeadwiseError(
            f"method = {settings!r}", "its name, with settings or without", '{ name = "iat", delta = 0.1 }'
        )
    method, given = methods[settings["name"]], {name: value for name, value in settings.items() if name != "name"}
    known = inspect.signature(method).parameters
    open_ = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    if not open_ and (other := [name for name in given if name not in known]):
        expected = f"its own settings: {', '.join(known) or 'none'}"
        raise HeadwiseError(f"the method {settings['name']!r} with {', '.join(other)}", expected)
    try:
        return method(**given)
    except TypeError as error:
        raise HeadwiseError(f"settings of the method {settings['name']!r}: {error}") from None


def _thinned(curves: dict[str, dict[str, list]], points: int = 50) -> dict[str, dict[str, list]]:
    """At most this many points of every curve, the last included, with five digits."""
    return {
        task: {
            name: short(values[:: -max(1, -(-len(values) // points))][::-1], digits=5) for name, values in curve.items()
        }
        for task, curve in curves.items()
    }


def short(value: Any, digits: int = 7) -> Any:
    """Plain data with rounded numbers, to keep records small; float32 has seven digits."""
    if isinstance(value, Mapping):
        return {name: short(inner, digits) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [short(inner, digits) for inner in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def small(counts: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest integer type; fractions, which some metrics count, as float32."""
    whole = counts.size and (counts >= 0).all() and (counts == counts.round()).all()
    return counts.astype(np.min_scalar_type(int(counts.max())) if whole else np.float32)


def _branch(place: Place, method: Any) -> Path | None:
    """The checkpoint where a method with ``delta`` branches from plain training."""
    if "branch" not in place.at:
        return None
    key = place.at["branch"]
    step = branch_step(place.before(key).result["steps"], method.delta)
    path = checkpoint.place(place.root / "work" / key / "checkpoints", step)
    return path if path.is_dir() else None  # otherwise the common part is trained again


def scored(model: MultiTaskModel, task: str, split: str = "dev", limit: int | None = None) -> dict[str, Any]:
    """A task's score with its confidence interval over examples."""
    score = evaluate(model, task, split=split, limit=limit)
    low, high = score.interval()
    return {"metric": score.metric, "value": score.value, "low": low, "high": high, "n": score.examples}


def lesioning(
    job: Job,
    *,
    trained: bool = True,
    by: str = "gradient",
    examples: int = 10_000,
    fractions: Sequence[float] = (0.3,),
    random: int | None = None,
    dev: int | None = None,
    seed: int = 0,
) -> Job:
    """A job that computes importance and dissociation for the model of a training job."""
    config = {"of": job.key, "training": job.config, "trained": trained, "by": by, "examples": examples}
    config |= {"fractions": list(fractions), "random": random, "dev": dev, "seed": seed}
    return Job("lesions", config, job.at, (job,) if trained else ())


def lesions(place: Place) -> dict[str, Any]:
    """Compute importance for every task and the lesion matrix."""
    c = place.config
    key = c["of"] if c["trained"] else None
    what = str(place.root.absolute()), key or digest(c["training"]), place.device
    model = shared(what, lambda: opened(place, c["training"], key))
    results = {n: importance(model, n, c["by"], examples=c["examples"], seed=c["seed"]) for n in model.tasks}
    how = {"random": c["random"], "limit": c["dev"], "seed": c["seed"], "log": place.log}
    dissociation = dissociate(model, results, c["fractions"], undefined="leave", **how)
    scores = {name: result.to_record() | {"split_half": result.split_half()} for name, result in results.items()}
    return short(plain({"importance": scores, "dissociation": dissociation.to_record(), **unverified(model)}))


def unverified(model: Any) -> dict[str, bool]:
    """What a record says if no forward proved where the heads are; nothing otherwise."""
    return {} if model.attention.verified else {"verified": False}


_loaded: dict[tuple[Any, ...], Any] = {}


def shared(what: tuple[Any, ...], load: Callable[[], Any]) -> Any:
    """The model that the job before loaded, if this one measures the same; a worker keeps one."""
    if what not in _loaded:
        _loaded.clear()
        _loaded[what] = load()
    return _loaded[what]


def scores(place: Place) -> dict[str, Any]:
    """Importance of one task in a model as it is; config has ``model``, ``task`` and options of `importance`."""
    config = dict(place.config)
    name, task = config.pop("model"), place.task(config.pop("task"))
    what = name, config.pop("weights"), task.name, config.pop("data"), place.device
    load = lambda: open_subject(place.encoder(name), [task]).to(default_device(place.device))  # noqa: E731
    model = shared(what, load)
    return short(plain(importance(model, task.name, log=place.log, **config).to_record())) | unverified(model)


def study(place: Place) -> dict[str, Any]:
    """Run a study in the job's folder; config has ``model``, ``tasks``, ``plan`` and fields of `Settings`."""
    config = dict(place.config)
    model, tasks = config.pop("model"), [place.task(name) for name in config.pop("tasks")]
    config.pop("weights")
    plan = Plan(**config.pop("plan", {}))
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    settings = Settings(plan, **values)
    options = {"log": place.log, "on_stage": lambda stage: place.log(stage.title), "progress": place.progress}
    data = Study(place.encoder(model), tasks, settings, place.folder, device=place.device, **options).run()
    report(data, place.folder / "report.html")
    return {name: data.get(name) for name in ("verdict", "dissociation", "iat", "prune")}
