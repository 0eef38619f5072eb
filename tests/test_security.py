"""What must not happen: code in files is run, files lead out of their folder, pages run texts, the network is asked."""

from __future__ import annotations

import ast
import json
import os
import pickle
import struct
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.io import files as store
from headwise.io.records import Results
from headwise.models.loading import load_encoder
from headwise.reporting.page import render
from headwise.tasks.readers.formats import formats
from headwise.testing import playground, tiny, tiny_tokenizer

SOURCE = Path(__file__).parent.parent / "src" / "headwise"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "tarfile",
    "gzip",
    "bz2",
    "lzma",
}
CALLS = {"torch.load", "torch.save", "np.load", "np.save", "numpy.load", "os.system", "os.popen", "eval", "exec"}
CALLS |= {"compile", "shutil.unpack_archive", "np.fromfile", "pd.read_pickle", "subprocess.getoutput"}
WRITTEN = {".json", ".jsonl", ".safetensors", ".txt", ".html", ".csv", ".md", ".log", ".toml", ".jinja", ".model", ""}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


# -- the code


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_in_the_code_unpacks_or_runs_what_it_reads(path):
    tree = ast.parse(path.read_text())
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and not n.level}
    assert not imported & MODULES
    for name, node in calls(tree):
        assert name not in CALLS, f"line {node.lineno}: {name}"
        said = {word.arg: ast.unparse(word.value) for word in node.keywords}
        assert said.get("trust_remote_code", "False") == "False" and said.get("shell", "False") == "False"
        assert said.get("allow_pickle", "False") == "False"
        if name.endswith("ZipFile"):  # archives are written, never read
            assert ast.unparse(node.args[1]) == "'w'"


def test_every_model_is_loaded_without_pickles():
    """`from_pretrained` of a model says use_safetensors; tokenizers and configurations hold no tensors."""
    for path in FILES:
        for name, node in calls(ast.parse(path.read_text())):
            if name.endswith("Model.from_pretrained") or name == "kind.from_pretrained":
                if name.split(".")[0] in ("MultiTaskModel", "LanguageModel", "TaskModel", "cls"):  # of headwise
                    continue
                said = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert said.get("use_safetensors") == "True", f"{path.name}:{node.lineno}"


# -- files of others


def test_pickled_weights_are_refused_and_not_opened(tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb()}))
    with pytest.raises(HeadwiseError, match="cannot load a model"):
        load_encoder(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_code_beside_a_model_is_not_run(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    places = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel", "AutoTokenizer": ["evil.T", "evil.T"]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": places}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')\nclass EvilConfig: pass\n")
    with pytest.raises(HeadwiseError, match="cannot load a model"):
        load_encoder(tmp_path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("length", [2**20, 2**31, 2**40, 2**63])
def test_a_header_that_says_it_is_huge_is_refused_at_once(tmp_path, length):
    file = tmp_path / "a.safetensors"
    file.write_bytes(struct.pack("<Q", length) + b'{"a":')
    with pytest.raises(HeadwiseError, match="not a readable"):
        store.read_arrays(file)
    from headwise.probing import mapped

    with pytest.raises(HeadwiseError):
        mapped.read(file, "k")


def test_a_header_that_is_huge_is_refused(tmp_path):
    """The library's own cap of 100 MB: a header past it is not parsed."""
    size = 101_000_000
    file = tmp_path / "a.safetensors"
    file.write_bytes(struct.pack("<Q", size) + b" " * size)
    with pytest.raises(HeadwiseError, match="not a readable"):
        store.read_arrays(file)


# -- paths


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/b", "..", ".hidden"])
def test_names_in_data_do_not_lead_out_of_the_folder(tmp_path, name):
    records = [{"id": "1", "text": "t", "label": name}, {"id": name, "text": "t", "label": "a"}]
    for record in records:
        with pytest.raises(HeadwiseError, match="no path"):
            formats["folders"].write(tmp_path / "deep" / "out", [record])
    assert not list(tmp_path.rglob("*.txt"))


# -- pages


HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)><!--{{7*7}}\u2028&amp;"


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen: Counter[tuple] = Counter()

    def handle_starttag(self, tag, attributes):
        self.seen[(tag, tuple(sorted(name for name, _ in attributes)))] += 1


def elements(page: str) -> Counter:
    parser = Elements()
    parser.feed(page)
    return parser.seen


def with_text(value, words: str):
    """The study with words put to every text in it, names included."""
    if isinstance(value, str):
        return value if value in ("none", "accuracy") else f"{value} {words}"
    if isinstance(value, list):
        return [with_text(part, words) for part in value]
    if isinstance(value, dict):
        return {name: with_text(part, words) for name, part in value.items()}
    return value


def test_no_text_of_a_study_becomes_an_element_of_its_page():
    sys.path.insert(0, str(Path(__file__).parent / "support"))
    from fake_study import make

    def page(words: str) -> str:
        study = store.plain(make(2, 3, 2))
        for part in ("title", "verdict", "trust", "tables", "examples", "model"):
            study[part] = with_text(study[part], words)
        return render([study])

    assert elements(page(HOSTILE)) == elements(page("harmless"))
    assert "<script>alert" not in page(HOSTILE)


# -- the network


VERBS = """
tasks --json
heads bert-tiny --json
train --model bert-tiny --task a=reviews.csv:text,label --task b=news.csv:text,label --steps 2 --out run --json
importance run/model --task a=reviews.csv:text,label --task b=news.csv:text,label --examples 8 --out scores --json
prune bert-tiny small --mask mask.json --json
report study.json --out page.html --json
sweep grid.toml --list --json
ls records --json
doctor --json
"""
WATCH = """
import sys
asked = []
def hook(event, args):
    if event.startswith("socket.") and event.split(".")[1] in ("connect", "getaddrinfo", "sendto", "gethostbyname"):
        place = args[1] if event in ("socket.connect", "socket.sendto") else args[0]
        place = place[0] if isinstance(place, tuple) else place
        if place not in ("127.0.0.1", "localhost", "::1", None) and not str(place).startswith("/"):
            asked.append(f"{event} {place}")
            raise OSError("no network")
sys.addaudithook(hook)
import shlex
from pathlib import Path
from headwise.cli.app import app
import headwise.cli
for line in Path("verbs.txt").read_text().split("\\n"):
    if line:
        try:
            app(args=shlex.split(line), standalone_mode=False)
        except Exception as error:
            sys.exit(f"{line}: {type(error).__name__}: {error}")
        assert not asked, f"{line}: {asked}"
from headwise.errors import HeadwiseError
from headwise.models.loading import load_encoder
try:
    load_encoder("somebody/some-model")
except HeadwiseError:
    pass
assert asked, "a Hub name should have asked the network: the watch does not see it"
"""


def test_no_verb_asks_the_network_and_no_file_it_writes_can_run(tmp_path):
    """All verbs in one process, with nothing said of being offline; a Hub name alone goes out."""
    place = playground(tmp_path)
    (place / "verbs.txt").write_text(VERBS)
    (place / "mask.json").write_text("[[true, false, false, false], [false, false, false, false]]")
    (place / "grid.toml").write_text('work = "lesions"\n[config]\nof = "x"\n')
    model, scores = {"name": "m", "layers": 1, "heads": 1}, {"a": {"scores": [[0.5]]}}
    (place / "study.json").write_text(json.dumps({"model": model, "tasks": [{"name": "a"}], "importance": scores}))
    Results(place / "records").save("a", {}, {})
    before = set(place.rglob("*"))
    kept = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    environment = {**kept, "HF_HOME": str(tmp_path / "hub"), "HEADWISE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", WATCH]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    made = [path for path in sorted(set(place.rglob("*")) - before) if path.is_file()]
    assert len(made) > 20 and (place / "page.html").exists()
    for path in made:
        assert path.suffix in WRITTEN, path
        start = path.read_bytes()[:4]
        assert not start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")), path
        assert not path.stat().st_mode & 0o111, f"{path} may be run"


def test_a_pickle_would_be_seen(tmp_path):
    """The check above can fail: this is what it looks for."""
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").read_bytes()[:2] == b"PK" and pickle.dumps({})[:2] in (b"\x80\x04", b"\x80\x05")
