"""The conversation of the fixture `written`: its first question, and the last tokens of its
generations in the playback: an answer, its continuation, another version, the next answer."""

ASK = "Tell me a story"
ASKED, CONTINUED, REGENERATED, LAST = 60, 90, 120, 132
