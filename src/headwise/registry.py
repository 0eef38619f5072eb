"""Registries: built-ins and plug-ins are added in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from headwise.errors import HeadwiseError, unknown

T = TypeVar("T")
PLUGINS = "headwise.plugins"
SHIPPED = ("headwise.papers",)  # plug-ins that come with headwise


class Registry(Generic[T]):
    """A table from names to objects; an object may be given as ``"module:attribute"`` and is imported on first use.

    Example:
        >>> estimators = Registry("estimator")
        >>> @estimators("random")
        ... def random_scores(): ...
        >>> estimators["random"] is random_scores
        True
    """

    _plugins_loaded = False

    def __init__(self, what: str):
        self.what = what
        self._entries: dict[str, T | str] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        def register(entry: T) -> T:
            self.add(name, entry)
            return entry

        return register

    def add(self, name: str, entry: T | str) -> None:
        """Register an object, or the place to import it from on first use."""
        old = self._entries.get(name)
        if old is not None and old is not entry and not isinstance(old, str):
            raise HeadwiseError(f"{self.what} {name!r} is registered twice", "a unique name")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            load_plugins()
        if name not in self._entries:
            raise unknown(self.what, name, self._entries)
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            entry = self._entries[name] = getattr(import_module(module), attribute)
        return entry  # type: ignore[return-value]

    def registered(self) -> list[str]:
        """The names known so far, without importing plug-ins."""
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


def load_plugins() -> None:
    """Import every plug-in once; importing it registers its entries."""
    if not Registry._plugins_loaded:
        Registry._plugins_loaded = True
        for module in SHIPPED:
            import_module(module)
        for point in entry_points(group=PLUGINS):
            point.load()
