"""Recipes: one paper each, as jobs, items of the paper, and tables next to the published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol

from headwise.errors import HeadwiseError, unknown
from headwise.experiments.jobs import Job
from headwise.io.files import cache_folder, folder
from headwise.io.records import Results
from headwise.registry import Registry
from headwise.training.plan import Plan

NAME = "tiny"
SENTENCES = 600  # of each language, for the vocabulary


def tiny_encoder() -> Path:
    """A folder with three layers of four heads, written once; the same bytes everywhere."""
    path = cache_folder("models") / "corpus-tiny-1"
    if not (path / "config.json").exists():
        from headwise.tasks.corpus import sentences
        from headwise.testing import tiny, tiny_tokenizer

        texts = [s.text for language in ("en", "es") for s in islice(sentences(language), SENTENCES)]
        words = sorted({word for text in texts for word in text.split()})
        size = len(words) + 8
        with folder(path, replace=True) as scratch:
            tiny("bert", vocab_size=size, num_hidden_layers=3).save_pretrained(scratch)
            tiny_tokenizer(words, size).save_pretrained(scratch)
    return path


SIZES = ("smoke", "small", "full")


@dataclass(frozen=True)
class Scale:
    """How much of a recipe to run, and on what.

    ``smoke`` takes the embedded corpus and a tiny model, ``small`` real samples and a small encoder, ``full`` what the
    paper had.
    """

    size: str = "smoke"
    models: Mapping[str, str] = field(default_factory=dict)
    """Folders or Hub names by a model's name. Default: the recipe's own."""
    data: str | None = None
    seeds: tuple[int, ...] = ()
    """Default: the recipe's own."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the training plan to change, in every training."""
    languages: tuple[str, ...] = ()
    """Languages of the tasks, for recipes with several. Default: the recipe's own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe's size to change, such as ``{"dev": 300}``."""

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise unknown("size", self.size, SIZES)

    def encoders(self, published: Mapping[str, str]) -> dict[str, str]:
        """The models by name: those given, else those of the size; of the size ``full`` those of the paper."""
        if self.models:
            return {known_as(name, folder, published): folder for name, folder in self.models.items()}
        if self.size == "full":
            return dict(published)
        if self.size == "small":
            from headwise.study.demo import encoder_folder

            return {"minilm-l6": str(encoder_folder())}

        return {NAME: str(tiny_encoder())}

    @property
    def at(self) -> dict[str, str]:
        """Locations of models and data on this machine."""
        return {**self.models, **({"data": self.data} if self.data else {})}


def known_as(name: str, folder: str, published: Mapping[str, str]) -> str:
    """The paper's name of a model that is given by its Hub name or by a folder named like it; else its own.

    Example:
        >>> known_as("bert-base-uncased", "models/bert-base-uncased", {"bert-base": "google-bert/bert-base-uncased"})
        'bert-base'
    """
    for known, hub in published.items():
        if hub in (name, folder) or name == hub.rpartition("/")[2]:
            return known
    return name


@dataclass(frozen=True)
class Part:
    """One section of a recipe's page: words, tables and figures."""

    title: str
    text: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list)
    """In the form of `headwise.reporting.tables`."""
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """File name, and what draws it; the first line of the drawing function's docstring is its caption."""


class Recipe(Protocol):
    """A paper's experiments."""

    name: str
    title: str
    paper: str

    def jobs(self, scale: Scale) -> list[Job]:
        """Everything to run."""
        ...

    def parts(self, results: Results) -> list[Part]:
        """Everything to show from the existing records."""
        ...


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper: the jobs that make it, and the tables and figures of the page that show it."""

    tag: str
    """Such as ``table-9``; what ``--only`` takes."""
    shows: str
    parts: tuple[str, ...] = ()
    """Methods of the recipe's `Build`; none for what is computed from the printed numbers, or cannot be run."""
    titles: tuple[str, ...] = ()
    """How titles of the page's tables and figures begin that show it."""
    missing: str = ""
    """Why it cannot be run completely: missing data or a private server."""


@dataclass(frozen=True)
class Difference:
    """A setting in which a recipe differs from its paper."""

    what: str
    paper: str
    here: str
    row: str = ""
    """The row or table of the page that follows the paper, if there is one."""


class Build:
    """The jobs of one model and one seed: a method for each part of a recipe."""

    paper: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    """All of them, the main results first."""

    def __init__(self, size: Any, model: str, at: Mapping[str, str], seed: int, seeds: Sequence[int]):
        self.size, self.model, self.at, self.seed, self.seeds = size, model, at, seed, tuple(seeds)

    @classmethod
    def seeds_of(cls, part: str, size: Any, given: Sequence[int]) -> tuple[int, ...]:
        """The seeds of a part: those given, else those of the size."""
        return tuple(given) or size.seeds

    def job(self, work: str, title: str, config: Mapping[str, Any], *after: Job) -> Job:
        """A job of one of the recipe's own works."""
        return Job(f"{self.paper}.{work}", dict(config), {**self.at, "title": title}, after)


@dataclass(frozen=True)
class PaperRecipe:
    """A recipe whose jobs, items and sections are given as data."""

    name: str
    title: str
    paper: str
    hub: Mapping[str, str]
    """The paper's models."""
    sizes: Mapping[str, Any]
    build: type[Build]
    read: Callable[[Results], Any]
    """Records as the sections take them."""
    sections: tuple[Callable[[Any], Part], ...]
    items: tuple[Item, ...] = ()
    differences: tuple[Difference, ...] = ()
    published: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the paper by their names in `sizes`, and in its plan."""
    contrast: Callable[..., tuple[Mapping[int, float], Mapping[int, float]]] | None = None
    """Scores by seed of two methods, ``(records, model, method, against, column, split)``: for registered tests."""

    def size(self, scale: Scale) -> Any:
        """The size with the scale's changes of the plan, languages and other settings."""
        size = self.sizes[scale.size]
        plans = {f.name: getattr(size, f.name) for f in fields(size) if isinstance(getattr(size, f.name), Plan)}
        changed: dict[str, Any] = {n: plan.with_(**scale.plan) for n, plan in plans.items()} if scale.plan else {}
        if "max_examples" in scale.plan and hasattr(size, "limit"):  # training rows of probes
            changed["limit"] = scale.plan["max_examples"]
        if scale.languages:
            if not hasattr(size, "languages"):
                raise HeadwiseError(f"languages for the recipe {self.name!r}", "a recipe of several languages: mesh")
            changed["languages"] = scale.languages
        changed |= {name: _changed(size, name, value, plans) for name, value in scale.settings.items()}
        return replace(size, **changed)

    def jobs(self, scale: Scale, only: Sequence[str] = ()) -> list[Job]:
        """All jobs at a scale, or those of some items, part after part, each with all its seeds.

        The same for every model; a run that is stopped early has whole tables.
        """
        size, wanted = self.size(scale), {part for item in self._items(only) for part in item.parts}
        jobs: dict[str, Job] = {}
        for model, where in scale.encoders(self.hub).items():
            at = {**scale.at, model: where}
            for part in self.build.parts:
                if only and part not in wanted:
                    continue
                for seed in self.build.seeds_of(part, size, scale.seeds):
                    build = self.build(size, model, at, seed, scale.seeds or size.seeds)
                    jobs |= {job.key: job for job in getattr(build, part)() if job.key not in jobs}
        return list(jobs.values())

    def parts(self, results: Results) -> list[Part]:
        """Every section that the records can fill."""
        records = self.read(results)
        return [part for make in self.sections if (part := make(records)).tables]

    def tag_of(self, title: str) -> str:
        """The table or figure of the paper that a table or figure of the page shows; empty for none."""
        return ", ".join(item.tag for item in self.items if item.titles and title.startswith(item.titles))

    def _items(self, tags: Sequence[str]) -> list[Item]:
        known = {item.tag: item for item in self.items}
        for tag in tags:
            if tag not in known:
                raise unknown("item of this paper", tag, known)
        return [known[tag] for tag in tags]


def _changed(size: Any, name: str, value: Any, plans: Mapping[str, Plan]) -> Any:
    """A new value of a size's field; lists become tuples, and a table of settings changes those it names."""
    able = [f.name for f in fields(size) if f.name not in plans]
    if name not in able:
        raise unknown("setting of this recipe", name, able)
    old = getattr(size, name)
    if isinstance(old, Mapping) and isinstance(value, Mapping):
        return {**old, **value}
    if isinstance(old, tuple):
        value = value if isinstance(value, list | tuple) else [value]
        return tuple(tuple(one) if isinstance(one, list) else one for one in value)
    if type(value) is not type(old) and not (isinstance(old, float) and isinstance(value, int)) and old is not None:
        raise HeadwiseError(f"{name} = {value!r}", f"a value like {old!r}")
    return value


recipes: Registry[Recipe] = Registry("recipe")
for _name in ("specialization", "anatomy", "stem_cell", "mesh", "together", "methods"):
    recipes.add(_name, f"headwise.papers.{_name}:recipe")
