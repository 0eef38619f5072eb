"""Probes without parameters, on plants and on maps made by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from plants import marked, planted

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import captured
from headwise.models.multitask import MultiTaskModel
from headwise.probing import nearest_centroid, probe, relations, unlearnt, word_centroids
from headwise.probing.parameterfree import arg_max, low_constituents
from headwise.tasks import Constituents, Dependencies, Frames, Rows, Spans, Tag, Task
from headwise.testing import tiny, tiny_tokenizer

WORDS = ["the", "dog", "barks", "a", "cat", "sleeps"]
TOKENIZER = tiny_tokenizer(WORDS)


def task(kind, *rows):
    return Task("t", kind, Rows(rows, rows, rows), "accuracy")


def test_the_planted_head_has_the_nearest_centroid():
    model, tokenizer = planted(1, 2)
    found = nearest_centroid(probe(model, marked(300), tokenizer=tokenizer))
    assert np.unravel_index(found.argmax(), found.shape) == (1, 2) and found[1, 2] > 0.9


def test_word_attention_sums_keys_and_averages_queries():
    word_of = torch.tensor([[-1, 0, 0, 1, -1]])  # first token, two sub-words, one word, last token
    attention = torch.zeros(1, 1, 5, 5)
    attention[0, 0, 0, 3] = 1.0  # the first token attends to word 1
    attention[0, 0, 1] = torch.tensor([0.4, 0.0, 0.0, 0.6, 0.0])
    attention[0, 0, 2] = torch.tensor([0.8, 0.0, 0.0, 0.2, 0.0])  # word 0 on average: first 0.6, word 1 0.4
    attention[0, 0, 3] = torch.tensor([0.4, 0.3, 0.3, 0.0, 0.0])  # word 1: first 0.4, word 0 0.6
    assert arg_max((attention,), word_of, 2)[0, :, 0, 0].tolist() == [2, 0, 1]


def test_relations_count_either_direction_and_restore_the_kernel():
    model = tiny("bert")
    before = model.config._attn_implementation
    row = {"words": ["the", "dog", "barks"], "heads": [2, 3, 0], "labels": ["det", "nsubj", "root"]}
    found = relations(model, task(Dependencies(), row), tokenizer=TOKENIZER)
    assert model.config._attn_implementation == before and found.about["attention"] == "eager"
    with torch.no_grad():
        model.set_attn_implementation("eager")
        maps = model(**TOKENIZER("the dog barks", return_tensors="pt"), output_attentions=True).attentions
    for layer in range(2):
        for head in range(4):
            places = maps[layer][0, head, :4, :4].argmax(-1).tolist()  # the first token and three words
            for label, i, h in (("det", 1, 2), ("nsubj", 2, 3), ("root", 3, 0)):
                wanted = places[i] == h or places[h] == i
                assert found.by_label[found.labels.index(label), layer, head] == wanted


def test_other_kinds_are_refused():
    row = {"words": ["the", "dog"], "labels": ["D", "N"]}
    with pytest.raises(HeadwiseError, match="Dependencies, Frames"):
        relations(tiny("bert"), task(Tag(), row), tokenizer=TOKENIZER)
    with pytest.raises(HeadwiseError, match="Tag, Spans, Constituents"):
        word_centroids(tiny("bert"), task(Dependencies(), row | {"heads": [2, 0]}), tokenizer=TOKENIZER)


# -- against a loop over tokens, layers and heads

LONG = [f"w{i}" for i in range(20)]
FAMILIES = ["bert", "roberta", "electra", "albert", "distilbert", "deberta-v2", "gpt2", "llama", "modernbert", "mpnet"]


def spelled(*words: str):
    """A tokenizer with two sub-words for every word of two letters and more; [CLS] and [SEP] around."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = {piece for word in words for piece in (word[:1], f"##{word[1:]}")}
    vocabulary = {piece: i for i, piece in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *sorted(pieces)])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def bare(tokenizer):
    """The same without special tokens, as decoders read texts."""
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    return tokenizer


def sentences(number: int, longest: int = 9, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[LONG[i] for i in rng.integers(0, 20, rng.integers(2, longest))] for _ in range(number)]


def windows_of(model, tokenizer, words, max_length=128):
    """Each window's ids, words and the words read in it."""
    from headwise.tasks.kinds.wordlevel import encode_words

    columns = encode_words([{"words": words}], tokenizer, max_length)
    ids, word_of = columns["input_ids"][0], columns["word_of"][0]
    number, full = (columns[name][0] if name in columns else None for name in ("window", "window_word"))
    if number is None:
        return [(ids, word_of, word_of)]
    return [(ids[number == n], full[number == n], word_of[number == n]) for n in range(number.max() + 1)]


def looped_looks(model, tokenizer, words, max_length=128) -> np.ndarray:
    """What each word looks at most, (L, H, 1 + W), word by word; -1: nothing known."""
    out = np.full((2, 4, 1 + len(words)), -1)
    for window, (ids, full, own) in enumerate(windows_of(model, tokenizer, words, max_length)):
        with torch.no_grad():
            maps = model(input_ids=torch.tensor(ids[None]).long(), output_attentions=True).attentions
        places = {w: np.flatnonzero(full == w) for w in range(len(words))}
        if full[0] < 0:
            places[-1] = np.array([0])
        for layer in range(2):
            for head in range(4):
                a = maps[layer][0, head].numpy()
                for query in places:
                    if (query == -1 and window) or (query >= 0 and query not in own):
                        continue
                    scores = {
                        k: np.mean([sum(a[i, j] for j in at) for i in places[query]])
                        for k, at in places.items()
                        if len(at)
                    }
                    out[layer, head, query + 1] = max(scores, key=lambda k: scores[k]) + 1
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_relations_equal_a_loop_over_words_and_heads(family):
    first, tokenizer = tiny(family), spelled(*LONG)
    tokenizer = bare(tokenizer) if family in ("gpt2", "llama") else tokenizer
    rng = np.random.default_rng(1)
    rows = []
    for words in sentences(6):
        heads = [0, *(int(rng.integers(1, i + 1)) for i in range(1, len(words)))]
        rows.append(
            {"words": words, "heads": heads, "labels": ["root", *rng.choice(["a", "b"], len(words) - 1).tolist()]}
        )
    found = relations(first, task(Dependencies(), *rows), tokenizer=tokenizer)
    first.set_attn_implementation("eager")
    right, count = {}, {}
    for row in rows:
        to = looped_looks(first, tokenizer, row["words"])
        for i, (head, label) in enumerate(zip(row["heads"], row["labels"])):
            if head == 0 and family in ("gpt2", "llama"):
                continue
            hit = (to[..., i + 1] == head) | (to[..., head] == i + 1)
            right[label], count[label] = right.get(label, 0) + hit, count.get(label, 0) + 1
    assert dict(zip(found.labels, found.counts)) == {label: count.get(label, 0) for label in ("a", "b", "root")}
    for label in right:
        np.testing.assert_allclose(found.by_label[found.labels.index(label)], right[label] / count[label])


def test_long_sentences_are_probed_in_windows():
    model, tokenizer = tiny("bert", max_position_embeddings=20), spelled(*LONG)
    words = sentences(1, 40, seed=3)[0]
    assert len(words) > 12
    rows = [{"words": words, "heads": list(range(len(words))), "labels": ["x"] * len(words)}]
    whole = MultiTaskModel(model, tokenizer, [task(Dependencies(arc_size=8, label_size=4), *rows)], max_length=20)
    found = relations(whole, whole.tasks["t"])
    model.set_attn_implementation("eager")
    to = looped_looks(model, tokenizer, words, 20)
    hits = [(to[..., i + 1] == i) | (to[..., i] == i + 1) for i in range(len(words))]
    np.testing.assert_allclose(found.by_label[0], np.mean(hits, 0))
    tags = [{"words": words, "labels": [w[-1] for w in words]}]
    tagged = MultiTaskModel(model, tokenizer, [task(Tag(), *tags)], max_length=20)
    assert word_centroids(tagged, tagged.tasks["t"]).counts.sum() == len(words)


@pytest.mark.parametrize("family", FAMILIES)
def test_centroids_equal_a_loop_over_units_and_heads(family):
    model, tokenizer = tiny(family), spelled(*LONG)
    rng = np.random.default_rng(2)
    rows = [
        {"words": words, "labels": [f"B-{rng.choice(['X', 'Y', 'Z'])}" if i % 2 else "O" for i in range(len(words))]}
        for words in sentences(12)
    ]
    rows = [row for row in rows if len(row["words"]) > 1]
    train, test = rows[:6], rows[6:]
    made = Task("t", Spans(), Rows(train, test, test), "span_f1")
    found = word_centroids(model, made, tokenizer=tokenizer)
    vectors = {}
    for side, part in (("train", train), ("test", test)):
        for row in part:
            ids, full, _ = windows_of(model, tokenizer, row["words"])[0]
            with torch.no_grad(), captured(model, lambda out: out) as kept:
                model(input_ids=torch.tensor(ids[None]).long())
            for i, label in enumerate(row["labels"]):
                if label != "O":
                    mean = torch.stack([out[0, full == i].mean(0) for out in kept])  # (L, H, D)
                    vectors.setdefault((side, label[2:]), []).append(mean)
    centroids = {label: torch.stack(v).mean(0) for (side, label), v in vectors.items() if side == "train"}
    for label in found.labels:
        each = vectors.get(("test", label), [])
        assert found.counts[found.labels.index(label)] == len(each)
        for layer in range(2):
            for head in range(4):
                near = [
                    max(
                        centroids,
                        key=lambda c: float(torch.cosine_similarity(v[layer, head], centroids[c][layer, head], 0)),
                    )
                    for v in each
                ]
                score = np.mean([n == label for n in near]) if each else np.nan
                np.testing.assert_allclose(found.by_label[found.labels.index(label), layer, head], score)


# -- plants


def test_the_head_that_made_the_relations_is_found():
    model, tokenizer = tiny("bert"), spelled(*LONG)
    model.set_attn_implementation("eager")
    rows = []
    for words in sentences(8):
        to = looped_looks(model, tokenizer, words)[1, 2, 1:] - 1
        frames = [{"predicate": int(p), "arguments": [[i, i + 1, "A0"]]} for i, p in enumerate(to) if p >= 0 and p != i]
        rows.append({"words": words, "frames": frames})
    found = relations(model, task(Frames(), *rows), tokenizer=tokenizer)
    assert found.accuracy[1, 2] == 1 and found.best()["A0"][:2] == (1, 2)
    assert np.sort(found.accuracy, axis=None)[-2] < 1


def test_the_head_that_made_the_labels_is_found():
    model, tokenizer = tiny("bert"), tiny_tokenizer(LONG)
    rows = []
    for words in sentences(60):
        with torch.no_grad(), captured(model, lambda out: out[0, 1:-1]) as kept:
            model(**tokenizer(" ".join(words), return_tensors="pt"))
        side = kept[1][:, 3] / kept[1][:, 3].norm(dim=-1, keepdim=True)
        rows.append({"words": words, "side": side})
    middle = torch.cat([row["side"] for row in rows]).median(0).values
    for row in rows:
        row["labels"] = ["up" if x > 0 else "down" for x in (row.pop("side") - middle)[:, 0].tolist()]
    made = Task("t", Tag(), Rows(rows[:40], rows[40:], rows[40:]), "tag_accuracy")
    found = word_centroids(model, made, tokenizer=tokenizer)
    assert np.unravel_index(found.accuracy.argmax(), (2, 4)) == (1, 3)


# -- doubtful input


def test_labels_without_a_centroid_are_counted_and_never_right():
    known, strange = {"words": ["the"], "labels": ["D"]}, {"words": ["dog"], "labels": ["N"]}
    made = Task("t", Tag(), Rows([known], [strange], [strange, known]), "tag_accuracy")
    with pytest.warns(UserWarning, match="not seen in training"):
        found = word_centroids(tiny("bert"), made, tokenizer=TOKENIZER)
    assert found.about["unseen"] == ["N"] and found.counts.tolist() == [1, 1]
    assert (found.by_label[found.labels.index("N")] == 0).all() and (found.accuracy == 0.5).all()


def test_heads_that_were_cut_away_have_no_score():
    model = tiny("bert")
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = mask[1, 3] = True
    cut = prune(copy.deepcopy(model), mask)
    row = {"words": ["the", "dog", "barks"], "heads": [2, 3, 0], "labels": ["det", "nsubj", "root"]}
    tags = {"words": ["the", "dog"], "labels": ["D", "N"]}
    for found in (
        relations(cut, task(Dependencies(), row), tokenizer=TOKENIZER),
        word_centroids(cut, task(Tag(), tags), tokenizer=TOKENIZER),
    ):
        assert (np.isnan(found.accuracy) == mask.numpy()).all()
        assert all(not mask[layer, head] for layer, head, _ in found.best().values())


def test_unlearnt_takes_the_probe_of_the_kind():
    row = {"words": ["the", "dog"], "labels": ["D", "N"], "heads": [2, 0]}
    assert unlearnt(tiny("bert"), task(Tag(), row), tokenizer=TOKENIZER, fit_on="test").by == "nearest centroid"
    assert unlearnt(tiny("bert"), task(Dependencies(), row), tokenizer=TOKENIZER, fit_on="test").by == "attention"


def test_words_are_named_by_their_centroid():
    rows = [
        {"words": [d, n, v], "labels": ["D", "N", "V"]} for d, n, v in (("the", "dog", "barks"), ("a", "cat", "sleeps"))
    ]
    found = word_centroids(tiny("bert"), task(Tag(), *rows), tokenizer=TOKENIZER)
    assert found.by_label.shape == (3, 2, 4) and found.counts.tolist() == [2, 2, 2]
    assert found.accuracy.max() > 0.6 and set(found.best()) == {"D", "N", "V"}
    assert found.to_record()["about"]["fit_on"] == "train"


def test_a_unit_alone_in_its_label_is_always_right():
    rows = [{"words": ["the", "dog", "barks"], "tree": "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"}]
    found = word_centroids(tiny("bert"), task(Constituents(), *rows), tokenizer=TOKENIZER, fit_on="test")
    assert found.labels == ("NP", "VP") and (found.accuracy == 1).all() and "nearest centroid" in str(found)
    spans = [{"words": ["the", "dog", "barks"], "labels": ["B-X", "I-X", "O"]}]
    assert (word_centroids(tiny("bert"), task(Spans(), *spans), tokenizer=TOKENIZER).accuracy == 1).all()


def test_low_constituents_stand_directly_above_tags():
    tree = "(S (NP (NP (DT a) (NN b)) (PP (IN c) (NP (NN d)))) (VP (VB e)))"
    assert low_constituents(tree) == [(0, 2, "NP"), (3, 4, "NP"), (4, 5, "VP")]


def test_an_argument_is_right_by_any_of_its_words():
    row = {"words": ["the", "dog", "barks"], "frames": [{"predicate": 2, "arguments": [[0, 2, "A0"]]}]}
    part = {"words": ["the", "dog", "barks"], "frames": [{"predicate": 2, "arguments": [[0, 1, "A0"]]}]}
    whole, one = (relations(tiny("bert"), task(Frames(), r), tokenizer=TOKENIZER).accuracy for r in (row, part))
    assert (whole >= one).all()
