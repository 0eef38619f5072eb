"""Speech with true word onsets from espeak-ng's library (Debian: apt-get install espeak-ng)."""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from functools import cache
from typing import Any

import numpy as np
from scipy.signal import resample_poly

RATE = 16_000
RETRIEVAL, WORD, UTF8 = 1, 1, 1


class Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))


@cache
def library() -> tuple[Any, int]:
    name = find_library("espeak-ng")
    if name is None:
        raise RuntimeError("no library of espeak-ng; on Debian: apt-get install espeak-ng")
    espeak = ctypes.CDLL(name)
    return espeak, espeak.espeak_Initialize(RETRIEVAL, 0, None, 0)


def speak(text: str, voice: str = "en-us", words_per_minute: int = 160) -> tuple[np.ndarray, np.ndarray]:
    """Samples at 16 kHz, and when each word begins, in seconds.

    The library may take two words for one ("of the"), whose second onset is then missing: compare their numbers.
    """
    espeak, rate = library()
    sound: list[int] = []
    starts: dict[int, float] = {}

    def heard(samples: Any, count: int, events: Any) -> int:
        number = 0
        while events[number].type:
            if events[number].type == WORD:
                starts.setdefault(events[number].text_position, events[number].sample / rate)
            number += 1
        if samples and count:
            sound.extend(samples[:count])
        return 0

    callback = CALLBACK(heard)
    espeak.espeak_SetSynthCallback(callback)
    espeak.espeak_SetVoiceByName(voice.encode())
    espeak.espeak_SetParameter(1, words_per_minute, 0)
    data = text.encode() + b"\0"
    espeak.espeak_Synth(data, len(data), 0, 1, 0, UTF8, None, None)
    espeak.espeak_Synchronize()
    samples = np.array(sound, np.float32) / 32768
    return resample_poly(samples, RATE, rate).astype(np.float32), np.array([starts[p] for p in sorted(starts)])
