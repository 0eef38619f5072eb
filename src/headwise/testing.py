"""Small models for tests, built from configurations: nothing is downloaded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from headwise.errors import unknown
from headwise.io.files import write

_TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 6}
_GPT = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 32, "vocab_size": 64, "n_positions": 64}
_IMAGE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
}
_SEQ2SEQ = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet", "esm", "nomic_bert"], _TEXT),
    "albert": _TEXT | {"embedding_size": 12},
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 32, "vocab_size": 64},
    "deberta": _TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": _TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": True},
    "modernbert": _TEXT | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    "openai-gpt": _GPT,
    "gpt2": _GPT,
    "gptj": _GPT | {"n_embd": 32, "rotary_dim": 4},
    "gpt_neo": {
        "hidden_size": 24,
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "num_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 64,
    },
    "gpt_neox": _TEXT,
    "opt": _TEXT | {"ffn_dim": 32, "word_embed_proj_dim": 24},
    "bloom": {"hidden_size": 24, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "falcon": _TEXT | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "mpt": {"d_model": 24, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "max_seq_len": 64},
    **dict.fromkeys(["llama", "mistral", "qwen2", "starcoder2", "stablelm", "cohere", "olmo2"], _GROUPED),
    "phi": _TEXT | {"hidden_size": 32, "partial_rotary_factor": 0.5},
    "qwen3": _GROUPED | {"head_dim": 8},
    "gemma2": _GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
    "gemma3_text": _GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
    "phi3": _GROUPED | {"bos_token_id": 1, "eos_token_id": 2},
    "t5": {
        "d_model": 24,
        "d_kv": 5,
        "d_ff": 32,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "vocab_size": 64,
    },
    "bart": _SEQ2SEQ | {"max_position_embeddings": 64},
    "whisper": _SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
    "vit": _IMAGE,
    "deit": _IMAGE,
    "dinov2": _IMAGE | {"mlp_ratio": 2},
    "clip": {
        "text_config": _TEXT | {"projection_dim": 8, "bos_token_id": 1, "eos_token_id": 2},
        "vision_config": _IMAGE | {"projection_dim": 8},
        "projection_dim": 8,
    },
}
FAMILIES = tuple(_FAMILIES)


def tiny(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, auto: str = "AutoModel", **config: Any) -> Any:
    """A random model of a family with two layers of four heads, in evaluation mode.

    Example:
        >>> tiny("bert").config.num_attention_heads
        4
    """
    import transformers

    if family not in _FAMILIES:
        raise unknown("family", family, _FAMILIES)
    settings = {**_FAMILIES[family], **config}
    generator = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        configuration = transformers.AutoConfig.for_model(family, **settings)
        model = getattr(transformers, auto).from_config(configuration)
        for parameter in model.parameters():  # default scales leave tiny models almost linear, biases zero
            if parameter.ndim >= 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    finally:
        torch.random.set_rng_state(generator)
    return model.to(dtype).eval()


def tiny_batch(model: Any, batch: int = 3, length: int = 7, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs that fit a tiny model: token ids without padding, pictures or sound features."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    ids = torch.randint(3, 60, (batch, length), generator=generator)
    dtype = next(model.parameters()).dtype
    if config.model_type == "whisper":
        sound = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)
        return {"input_features": sound.to(dtype), "decoder_input_ids": ids}
    picture = torch.randn(batch, 3, 16, 16, generator=generator).to(dtype)
    if config.model_type == "clip":
        ids[:, -1] = config.text_config.eos_token_id
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": picture}
    if hasattr(config, "patch_size") and hasattr(config, "image_size"):
        return {"pixel_values": picture}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids.roll(1, 1)
    return inputs


def tiny_tokenizer(words: Any = (), size: int = 64) -> Any:
    """A word-level tokenizer with [CLS] and [SEP] for tiny models; unknown words share one id."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*special, *words]))}
    if len(vocabulary) > size:
        raise ValueError(f"{len(vocabulary)} words for a vocabulary of {size}")
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )


def causal_tokenizer(words: list[str]) -> Any:
    """A `tiny_tokenizer` that adds no special tokens, and has some to begin and to end with."""
    tokenizer = tiny_tokenizer(words)
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.add_special_tokens({"bos_token": "[CLS]", "eos_token": "[SEP]"})
    return tokenizer


def toy_language_model(
    family: str = "llama", dtype: torch.dtype = torch.float64, rows: int = 12, **options: Any
) -> Any:
    """A tiny random language model over twenty words, with a task of each kind for language models."""
    from headwise.models.language import LanguageModel

    words = [f"w{i}" for i in range(20)]
    autos = {"bert": "AutoModelForMaskedLM", "roberta": "AutoModelForMaskedLM", "modernbert": "AutoModelForMaskedLM"}
    autos |= {"t5": "AutoModelForSeq2SeqLM", "bart": "AutoModelForSeq2SeqLM"}
    auto = autos.get(family, "AutoModelForCausalLM")
    ends = {} if auto == "AutoModelForCausalLM" else {"pad_token_id": 0, "decoder_start_token_id": 0}
    model = tiny(family, dtype=dtype, auto=auto, **(ends if auto.endswith("Seq2SeqLM") else {}))
    tokenizer = tiny_tokenizer(words) if auto == "AutoModelForMaskedLM" else causal_tokenizer(words)
    tasks = toy_prompts(words, rows)
    return LanguageModel(model, tokenizer, tasks[:-1] if auto == "AutoModelForMaskedLM" else tasks, **options)


def toy_prompts(words: list[str], rows: int = 12, seed: int = 0) -> list[Any]:
    """Tasks of random words for a language model: short choices, long choices, continuations and answers."""
    from headwise.tasks.kinds.choice import Choice
    from headwise.tasks.kinds.generation import Continuation, Generation
    from headwise.tasks.task import Rows, Task

    draw = random.Random(seed)

    def text(low: int, high: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(low, high)))

    label = lambda: draw.randint(0, 1)  # noqa: E731
    short = [{"prompt": text(2, 9), "choices": draw.sample(words, 2), "label": label()} for _ in range(rows)]
    pairs = [{"prompt": "", "choices": [text(2, 6), text(2, 6)], "label": label()} for _ in range(rows)]
    several = [
        {"prompt": text(0, 8), "choices": [text(1, 4) for _ in range(2 + i % 3)], "label": 1} for i in range(rows)
    ]
    after = [{"prompt": text(2, 30), "target": text(1, 4)} for _ in range(rows)]
    asked = [{"prompt": text(2, 9), "answers": [text(1, 3)]} for _ in range(rows)]
    kinds = {"short": Choice(), "pairs": Choice(), "several": Choice(score="token", loss_of="choices")}
    tasks = [
        Task(name, kinds[name], Rows(data, data), "accuracy") for name, data in zip(kinds, (short, pairs, several))
    ]
    tasks.append(Task("after", Continuation(), Rows(after, after), "continuation_match"))
    return [*tasks, Task("asked", Generation(longest=4), Rows(asked, asked), "answer_f1")]


def toy_tasks(count: int = 2, rows: int = 96, seed: int = 0) -> list[Any]:
    """Small learnable tasks over twenty words: task i asks which of two marker words a text holds."""
    from headwise.tasks.kinds.classify import Classify
    from headwise.tasks.task import Rows, Task

    words = [f"w{i}" for i in range(20)]
    tasks = []
    for number in range(count):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        made = []
        for _ in range(rows + rows // 2):
            length = int(torch.randint(3, 9, (1,), generator=generator))
            text = [words[int(i)] for i in torch.randint(0, 20, (length,), generator=generator)]
            label = int(torch.randint(0, 2, (1,), generator=generator))
            text.insert(int(torch.randint(0, length, (1,), generator=generator)), f"m{number}{'ab'[label]}")
            made.append({"text": " ".join(text), "label": "ab"[label]})
        source = Rows(train=made[:rows], dev=made[rows:])
        tasks.append(Task(f"toy{number}", Classify(("a", "b")), source, "accuracy"))
    return tasks


def toy_model(count: int = 2, family: str = "bert", seed: int = 0, rows: int = 96, **options: Any) -> Any:
    """A tiny multi-task model over the toy tasks, dropout as the family has it."""
    from headwise.models.multitask import MultiTaskModel

    words = [f"w{i}" for i in range(20)] + [f"m{i}{c}" for i in range(count) for c in "ab"]
    encoder = tiny(family, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MultiTaskModel(encoder, tiny_tokenizer(words), toy_tasks(count, rows), **options)


def no_dropout(model: Any) -> Any:
    """The model with all dropout rates set to 0, those read by attention included."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "dropout_prob", "attention_dropout", "attn_pdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def layers_run_again(model: Any) -> Any:
    """The model with activation checkpointing: layers run again in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name from transformers 5.23 on
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model


def playground(folder: str | Path) -> Path:
    """Two tiny random models and two small files of texts, for trying the verbs.

    Example:
        >>> sorted(path.name for path in playground("play").iterdir())
        ['bert-tiny', 'llama-tiny', 'news.csv', 'reviews.csv']
    """
    folder = Path(folder)
    good, bad = ("great", "lovely", "clever", "warm", "bright"), ("dull", "awful", "weak", "cold", "dreadful")
    sport, film = ("match", "goal", "player", "team", "race"), ("film", "actor", "scene", "story", "song")
    frames = ("the {} was {}", "we saw the {} and it was {}", "a {} that was so {}", "they say the {} is {}")
    texts = [frame.format(noun, word) for frame in frames for noun in sport + film for word in good + bad]
    labels = {
        "reviews": [("good" if any(w in good for w in t.split()) else "bad") for t in texts],
        "news": [("sport" if any(w in sport for w in t.split()) else "film") for t in texts],
    }
    for name, given in labels.items():
        rows = "".join(f"{text},{label}\n" for text, label in zip(texts, given))
        write(folder / f"{name}.csv", f"text,label\n{rows}")
    words = sorted({word for text in texts for word in text.split()})
    tiny("bert").save_pretrained(folder / "bert-tiny")
    tiny_tokenizer(words).save_pretrained(folder / "bert-tiny")
    tiny("llama", auto="AutoModelForCausalLM").save_pretrained(folder / "llama-tiny")
    causal_tokenizer([*words, "good", "bad", "sport"]).save_pretrained(folder / "llama-tiny")
    return folder


def speech_playground(folder: str | Path, count: int = 10) -> Path:
    """Tiny random speech models, a classifier and a transcriber, and recordings for them.

    Example:
        >>> sorted(path.name for path in speech_playground("play").iterdir())
        ['clips.csv', 'tone-model', 'tones', 'whisper-tiny']
    """
    import numpy as np
    import transformers
    from scipy.io import wavfile

    folder, rate = Path(folder), 16_000
    for name, height in (("high", 1000), ("low", 200)):
        for i in range(count):
            path = folder / "tones" / name / f"{i}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            wave = np.sin(2 * np.pi * (height + 10 * i) * np.arange(1600) / rate)
            wavfile.write(path, rate, (8000 * wave).astype(np.int16))
    words = ("a", "big", "cat", "dog", "ran")
    said = [f"tones/high/{i}.wav,{words[i % 5]} {words[i * 3 % 4]} {words[i // 5 % 5]}\n" for i in range(count)]
    write(folder / "clips.csv", "path,text\n" + "".join(said))
    shape = {name: _TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    shape |= {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2}
    shape |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8}
    names = {"id2label": {0: "low", 1: "high"}, "label2id": {"low": 0, "high": 1}}
    config = transformers.AutoConfig.for_model("wav2vec2", intermediate_size=32, **shape, **names)
    transformers.AutoModelForAudioClassification.from_config(config).save_pretrained(folder / "tone-model")
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder / "tone-model")
    special = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
    vocabulary = {token: i for i, token in enumerate((*special, "Ġ", *"abcdefghijklmnopqrstuvwxyz"))}
    marks = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), special[0])
    tokenizer: Any = transformers.WhisperTokenizer(vocab=vocabulary, merges=[], **marks)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special[1:])})
    heard = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    more: dict[str, Any] = {"max_source_positions": 50, "max_target_positions": 32, "decoder_start_token_id": 1}
    tiny("whisper", auto="AutoModelForSpeechSeq2Seq", **more).save_pretrained(folder / "whisper-tiny")
    transformers.WhisperProcessor(heard, tokenizer).save_pretrained(folder / "whisper-tiny")
    return folder


def planted(shared: bool = False, seed: int = 0, steps: int = 300) -> tuple[Any, dict[str, torch.Tensor]]:
    """A trained two-task model in which one known head carries each task, and the heads' masks.

    Training rewards the right answer while other heads are closed at random, and uniform predictions while the planted
    head is closed. The other heads stay active: they have weights, outputs and gradients. ``shared`` plants one head
    for both tasks.
    """
    from headwise.training.loop import fit
    from headwise.training.methods.method import Method
    from headwise.training.plan import Plan

    model = toy_model(2, seed=seed, rows=384)
    masks = {task: torch.zeros(2, 4, dtype=torch.bool) for task in model.tasks}
    masks["toy0"][0, 1] = True
    masks["toy1"][(0, 1) if shared else (1, 2)] = True
    generator = torch.Generator().manual_seed(seed)

    class Planting(Method):
        name = "planting"

        def loss(self, run: Any, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            open_ = (torch.rand(len(batch["input_ids"]), 2, 4, generator=generator) < 0.6).float()
            right = _gated_scores(model, task, batch, open_.masked_fill(masks[task], 1.0))
            silent = _gated_scores(model, task, batch, open_.masked_fill(masks[task], 0.0))
            return model.tasks[task].kind.loss(right, batch) - silent.log_softmax(-1).mean(-1)

    fit(model, Plan(steps=steps, lr=5e-3, batch_size=32, evaluate_every=0, seed=seed), Planting())
    return model, masks


def _gated_scores(model: Any, task: str, batch: dict[str, torch.Tensor], gates: torch.Tensor) -> torch.Tensor:
    from headwise.heads.gates import gated

    with gated(model.encoder, gates):
        return model(task, batch).scores
