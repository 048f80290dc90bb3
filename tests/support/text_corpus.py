"""Strings that tokenizers get wrong: a seeded corpus, the same on every machine."""

from __future__ import annotations

import random

FIXED = (
    "",
    " ",
    "  ",
    "\n",
    " \n \n\n\t x",
    "Hello, world!",
    "it's I'll WE'VE don't she'd 'S 'LL o'clock 'tis rock'n'roll",
    "1234567890 3.14159 1,000,000 0x7fff 1e-9 v2.0.1",
    "x2y33z444 7eleven 100% $5.00 £20",
    "def f(x):\n    return x ** 2  # square\n\n\tif x:\r\n\t\tpass\r\n",
    '{"a": [1, 2, {"b": null}], "c": "d\\n"}',
    "https://example.org/path?q=a%20b&c=1#frag",
    "naïve café Ångström e\u0301 a\u0308\u0323",
    "日本語のテキスト、そして漢字123。",
    "한국어 문장입니다. 안녕하세요!",
    "Привет, мир! Ёлка №5",
    "مرحبا بالعالم ١٢٣ ٪",
    "हिन्दी में पाठ १२३",
    "ภาษาไทยไม่มีวรรค",
    "½ ² ³ Ⅷ ⅓ \u3007 ①②③ ५६",
    "👍 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 e\u200d",
    "\u00a0\u2003\u3000\u0085x\u200b\ufeffy\x1c\x1f",
    "a" * 300,
    " " * 300,
    "ab" * 200,
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|><repo_name><file_sep> <|im_end|>",
    "<|im_end|",
    "|>",
    "<|im_<|im_end|>end|>",
    "!!!???...---___***///\\\\\\",
    "A\u030a\u0327 \U00010348 \U000e0001 \U0010fffd",
)

_ALPHABETS = (
    "abcdefghij XYZ",
    "0123456789.,- ",
    " \t\n\r\u00a0\u3000",
    "'sStTdDmM llre ve",
    "äöüßéèñçåø ÆØÅ",
    "日本語中文字漢 、。",
    "абвгдеЖЗИ ",
    "العربية ١٢٣",
    '!"#$%&()*+,-./:;<=>?@[]^_`{|}~',
    "😀👍🏽🎉\u200d\ufe0f",
    "²³½ⅧⅨ①५",
    "\u0301\u0308\u0323\u200b\u00ad",
)
_WORDS = (
    *("the", " and", " of", " tokenizer", "Ing", " don't", " 2024", "\n\n", "  ", " x =", "();"),
    *("<|im_start|>", "<|im_end|>", "<|", "|>", "<think>", "\t", "\r\n", " é", "日", " 👍", "'s"),
)


def corpus(seed: int, count: int) -> list[str]:
    """Return the fixed strings and so many random ones."""
    source = random.Random(seed)
    return [*FIXED, *(_random_text(source) for _ in range(count))]


def _random_text(source: random.Random) -> str:
    kind = source.random()
    length = source.randrange(1, 24)
    if kind < 0.4:
        return "".join(source.choice(_WORDS) for _ in range(length))
    if kind < 0.8:
        pools = source.sample(_ALPHABETS, source.randrange(1, 4))
        return "".join(source.choice(source.choice(pools)) for _ in range(length))
    return "".join(_any_character(source) for _ in range(length))


def _any_character(source: random.Random) -> str:
    while True:
        point = source.choice((source.randrange(1, 0x300), source.randrange(1, 0x11000)))
        # Text has no surrogates, and unassigned characters change class between versions of
        # Unicode, on which the reference and the library need not agree.
        if not 0xD800 <= point < 0xE000 and _is_stable(chr(point)):
            return chr(point)


def _is_stable(character: str) -> bool:
    import unicodedata

    return unicodedata.ucd_3_2_0.category(character) not in ("Cn", "Co", "Cs")
