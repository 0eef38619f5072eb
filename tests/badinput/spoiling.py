"""Good files and what can happen to them."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from safetensors.numpy import save

NASTY = [
    *(
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"\r",
        b"\n\n",
        b"\t",
        b" ",
        b'"',
        b"'",
        b",",
        b":",
        b"=",
        b"#",
    ),
    *(
        b"(",
        b")",
        b"*",
        b"[",
        b"]",
        b"{",
        b"}",
        b"[[",
        b"]]",
        b"-",
        b"_",
        b"0",
        b"-1",
        b"1e999",
        b"NaN",
        b"null",
        b"true",
    ),
    *(
        b"9" * 30,
        b"7" * 5000,
        b"../..",
        b"\\",
        b"\xf0\x9f\x98\x80",
        b"[" * 2000,
        b'{"a":' * 500,
        b"(S " * 400,
        b"\xc2\xb2",
    ),
]


@st.composite
def spoiled(draw, valid: bytes) -> bytes:
    """A good file after one to four accidents: pieces lost, put in, doubled, or words of other files in it."""
    content = valid
    for _ in range(draw(st.integers(1, 4))):
        a, b = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
        b = min(b, a + draw(st.sampled_from([1, 3, 20, 10_000])))
        how = draw(st.sampled_from(["lose", "put", "put", "double", "random", "swap"]))
        if how == "lose":
            content = content[:a] + content[b:]
        elif how == "put":
            content = content[:a] + draw(st.sampled_from(NASTY)) + content[a:]
        elif how == "double":
            content = content[:b] + content[a:b] + content[b:]
        elif how == "random":
            content = content[:a] + draw(st.binary(max_size=8)) + content[b:]
        else:
            content = content[:a] + draw(st.sampled_from(NASTY)) + content[b:]
    return content


def files(valid: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(spoiled(valid), spoiled(valid), st.binary(max_size=60))


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a b", "c", "d e"], "label": ["x", "y", "x"]}), out)
    return out.getvalue()


CONLLU = (
    "# sent_id = 1\n# text = Dogs bark\n1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n"
    "2\tbark\tbark\tVERB\tVBP\t_\t0\troot\t_\t_\n\n"
    + "".join(f"1\t{verb}\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n\n" for verb in ("Go", "Run", "Sit"))
).encode()
CONLL2012 = (
    "#begin document (x); part 000\n"
    + "".join(
        f"x 0 0 {noun} NNS (TOP(S(NP*) - - - - (PER) (ARG0*) -\nx 0 1 bark VBP (VP*))) bark 01 - - * (V*) -\n\n"
        for noun in ("Dogs", "Seals", "Foxes", "Trees")
    )
    + "#end document\n"
).encode()
SQUAD = json.dumps(
    {
        "data": [
            {
                "title": "t",
                "paragraphs": [
                    {
                        "context": "The cat sat on the mat.",
                        "qas": [
                            {"id": str(n), "question": f"Who {n}?", "answers": [{"text": "cat", "answer_start": 4}]}
                            for n in range(4)
                        ],
                    }
                ],
            }
        ]
    }
).encode()
TABLES = {
    "csv": b'text,label\n"good, really",pos\nbad,neg\nfine,pos\n',
    "tsv": b"text\tlabel\ngood\tpos\nbad\tneg\nfine\tpos\n",
    "jsonl": b'{"text": "good", "label": "pos"}\n{"text": "bad", "label": "neg"}\n{"text": "ok", "label": "pos"}\n',
    "parquet": _parquet(),
}
READERS = {
    **TABLES,
    "lines": b"one text\nanother text\n",
    "conllu": CONLLU,
    "columns": b"John\tB-PER\nSmith\tI-PER\nsleeps\tO\n\nGo\tO\n\nRun\tO\n\nSit\tO\n\n",
    "conll2012": CONLL2012,
    "trees": b"(S (NP (DT The) (NN dog)) (VP (VBZ barks)))\n(S (VP (VB Go)))\n(S (VP (VB Run)))\n(S (VP (VB Sit)))\n",
    "squad": SQUAD,
}
OWN = {  # suffix and columns as a user names them
    **{name: (name, "text,label") for name in TABLES},
    "pos": ("conllu", "pos"),
    "dep": ("conllu", "dep"),
    "ner": ("columns", "ner"),
    "con": ("trees", "con"),
    "srl": ("conll2012", "srl"),
    "qa": ("squad", "qa"),
}
PLAN = b'epochs = 2\nlr = 2e-5\nbatch_size = 32\nsampling = "proportional"\norder = ["a", "b"]\nseed = 3\n'
SWEEP = (
    b'work = "lesions"\n[config]\nmodel = "tiny"\nplan = { steps = 4, lr = 1e-3 }\n[grid]\n"plan.seed" = [0, 1]\n'
    b'[at]\ntiny = "bert-tiny"\n'
)
MASKS = {
    "json": b"[[true, false, false], [false, true, true]]",
    "safetensors": save({"mask": np.array([[True, False], [False, True]])}),
}
STUDY = json.dumps(
    {
        "title": "t",
        "model": {"name": "m", "layers": 2, "heads": 2},
        "tasks": [{"name": "a", "metric": "accuracy"}, {"name": "b"}],
        "importance": {"a": {"scores": [[0.5, 0.1], [0.2, 0.3]]}, "b": {"scores": [[0.1, 0.2], [0.3, 0.4]]}},
        "dissociation": {
            "fractions": [0.3],
            "lesions": ["none", "a", "b"],
            "performance": [[[0.9, 0.5, 0.8], [0.8, 0.7, 0.4]]],
        },
        "verdict": ["They come apart."],
    }
).encode()
