"""Texts that are difficult for tokenizers: many scripts, emoji, combining marks, control
characters, whitespace."""

from __future__ import annotations

SCRIPTS = [
    "Once upon a time, there was a little cat; it didn't like rain, it'd rather SLEEP.",
    "Les élèves ont mangé « des crêpes » à l'Hôtel-Dieu — 3,50 € l'unité.",
    "Die Straße führt über den Fluß nach Österreich; Größe: 12,5 m².",
    "¿Dónde está el niño? ¡Qué sueño tengo mañana!",
    "İstanbul'da ılık bir gün, şişe, çığ, ğ.",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Ænes ø, å.",
    "Привет, мир! Съешь ещё этих мягких французских булок, да выпей чаю. Ґанок, їжа.",
    "Ο ήλιος βγήκε· η γάτα κοιμάται. ΆΈΉΊΌΎΏ ς σ",
    "שָׁלוֹם עוֹלָם, מה שלומך היום?",
    "مرحبا بالعالم، كيف حالك اليوم؟ ١٢٣٤٥ ـــ لُغَة",
    "नमस्ते दुनिया, क्षत्रिय ज्ञान। १२३",
    "বাংলা ভাষা, தமிழ் மொழி, తెలుగు, ಕನ್ನಡ, മലയാളം, සිංහල",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "ສະບາຍດີ ខ្មែរ မြန်မာ བོད་སྐད་",
    "你好，世界！繁體字與简体字。「引號」……",
    "こんにちは世界。カタカナとひらがな、漢字。ｶﾀｶﾅ ﾊﾞ",
    "안녕하세요 세계! 한글 ㄱㄴㄷ",
    "გამარჯობა Հայերեն አማርኛ ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ",
    "Tiếng Việt: Đường Nguyễn Huệ rất đẹp ơ ư",
    "𝕳𝖊𝖑𝖑𝖔 𝒲 𝟙𝟚𝟛 𐍈 𒀀 𓀀 🄰 ① Ⅷ ½ ﬁ ﷺ",
]
EMOJI = [
    "🙂 🙃😀😀😀 ok 🦊!",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ❤️ ❤ ☃️ ✈︎",
    "👩‍ a\u200db \ufe0f\u20e3 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
]
MARKS = [
    "e\u0301 é E\u0301\u0327 a\u030a\u0301 n\u0303 o\u0308 ö ṩ s\u0323\u0307 \u0301",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L",
    "ﬁ ﬂ Ａ ｂ ＃ 〜 ～ K Å Ω ™ ² ㎏ ㈱ …",
    "\u202eright to left\u202c \u2066isolate\u2069 \u200f\u200e",
    "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff\ufdd0",
]
CONTROL = [
    "\x00a\x01\x02b\x07\x08\x1b[31m\x7f\x80\x85\x9f",
    "nul\x00nul \ufeffbom\ufeff \xadsoft\xadhyphen a\u200bb\u200cc\u2060d",
    "\u2028line\u2029paragraph\x0b\x0cform\x1c\x1d\x1e\x1f",
]
SPACES = [
    "",
    " ",
    "  ",
    "   a",
    "a ",
    "a  b   c    d     e        f                h",
    "\n",
    "\n\n",
    "\r\n\r\n a\r b\n\r",
    "\ta\t\tb \t c",
    " \n \n\n  \n",
    "a\xa0b\u2003c\u3000d\u2009e\u202ff\u1680g",
    "def f(x):\n    if x:\n\treturn  x  # two\n\n\n",
]
MIXED = [
    "Helloпривет你好مرحبا🙂123abc",
    "aаαɑ pрρ Cс LATINкириллица",
    "x=1234567890;y=0x1F,z=1e-5 3.14159 1,000,000 ٣٤٥ १२ 12ab34",
    "it's It'S WE'LL they've I'M you'd 'tis 's s' ''s",
    "https://example.org/a_b?c=d&e=%20#f user@host.tld C:\\dir\\file.txt",
    '{"k": [1, null, "\\u00e9"]} <b>x</b> <|im_start|> [INST] </s> <0x41> ## ▁x Ġ Ċ',
    "!!!???...---___***###@@@~~~```$$$^^^|||\\\\\\///",
    "a" * 300 + " " + "ab" * 120 + " " + "🙂" * 40 + "世" * 60,
]
TEXTS = [*SCRIPTS, *EMOJI, *MARKS, *CONTROL, *SPACES, *MIXED]
