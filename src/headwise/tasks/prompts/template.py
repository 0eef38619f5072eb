"""Templates: a row of a task as a prompt, and labels as the words a language model is to say (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter

from headwise.errors import HeadwiseError
from headwise.tasks.task import Row


@dataclass(frozen=True)
class Template:
    """How a task's rows are written.

    Example:
        >>> template = Template("Review: {text}\\nSentiment:", {"neg": "negative", "pos": "positive"})
        >>> template.prompt({"text": "A warm, clever film."})
        'Review: A warm, clever film.\\nSentiment:'
    """

    text: str
    """A row as a prompt; ``{text}``, ``{text_b}``, ``{question}`` and ``{context}`` are its fields."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the model is to say for each label; by default the label itself."""
    between: str = "\n\n"
    """What stands between examples."""

    def prompt(self, row: Row, shots: Sequence[tuple[Row, str]] = (), delimiter: str = " ") -> str:
        """A row's prompt, after examples with their answers."""
        told = [f"{self._fill(shot)}{delimiter}{answer}{self.between}" for shot, answer in shots]
        return "".join([*told, self._fill(row)])

    def _fill(self, row: Row) -> str:
        if missing := [name for name in self.fields if row.get(name) is None]:
            raise HeadwiseError(f"the template needs {missing[0]!r}", f"a field of the row: {', '.join(row)}")
        return self.text.format(**{name: str(row[name]).strip() for name in self.fields})

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row that are filled in, in their order."""
        return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(self.text) if name))

    def word(self, label: str) -> str:
        return self.words.get(label, label)

    def neutral(self, text: str) -> dict[str, str]:
        """A row without content."""
        return dict.fromkeys(self.fields, text)
