"""The words of the rules."""

from __future__ import annotations

# People and animals, each with a regular plural in -s.
NOUNS = (
    *("doctor", "pilot", "farmer", "singer", "lawyer", "painter", "teacher", "baker"),
    *("sailor", "driver", "student", "neighbour", "king", "queen", "soldier", "gardener"),
    *("dog", "cat", "horse", "lion", "tiger", "rabbit", "monkey", "eagle"),
)
# Intransitive verbs, with -s in the singular.
INTRANSITIVE = (
    *("sleep", "run", "smile", "wait", "sing", "swim", "work", "rest"),
    *("eat", "arrive", "leave", "return", "shout", "listen", "dance", "fall"),
)
# Transitive verbs with -s in the singular and -ed in the past tense and the passive.
TRANSITIVE = (
    *("follow", "help", "visit", "remember", "greet", "protect", "avoid", "warn"),
    *("watch", "reward", "attack", "trust", "answer", "call", "touch", "reach"),
)
PREPOSITIONS = ("near", "behind", "beside", "opposite", "above", "below", "in front of", "next to")
ADJECTIVES = (
    *("tall", "old", "young", "small", "quiet", "brave", "clever", "tired"),
    *("lonely", "famous", "hungry", "strong"),
)
FREQUENCIES = ("often", "usually", "always", "rarely", "sometimes", "never", "really", "probably")
TIMES = (
    *("today", "yesterday", "on Monday", "in the morning", "at night", "last week"),
    *("in the garden", "at the station", "on the bridge", "in the market", "after lunch"),
)
MANNERS = (
    *("quickly", "slowly", "quietly", "loudly", "happily", "alone", "together", "again"),
    *("in the rain", "without a break", "for an hour", "with great care"),
)
SUBJECTS = (
    *("film", "book", "meal", "hotel", "concert", "game", "room", "service"),
    *("story", "music", "ending", "coffee", "trip", "lesson", "garden", "camera"),
)
GOOD = (
    *("good", "great", "lovely", "excellent", "wonderful", "charming", "delightful", "superb"),
    *("pleasant", "brilliant"),
)
BAD = (
    *("bad", "awful", "terrible", "boring", "dreadful", "horrible", "disappointing", "poor"),
    *("unpleasant", "dull"),
)
INTENSIFIERS = ("", "very ", "really ", "quite ", "rather ")
INTENSIFIERS_OF_NEGATIONS = ("", "very ", "really ", "so ", "at all ")
# Of a noun, from which a smaller set follows.
RESTRICTIONS = (
    "that we know",
    "from the village",
    "with a red hat",
    "over there",
    "without a home",
)


def inflect(verb: str, is_plural: bool) -> str:
    """Return the present tense of a verb."""
    if is_plural:
        return verb
    return f"{verb}es" if verb.endswith(("sh", "ch", "s", "x")) else f"{verb}s"


def make_past(verb: str) -> str:
    """Return the past tense of a regular transitive verb, which is its participle too."""
    return f"{verb}d" if verb.endswith("e") else f"{verb}ed"


def make_plural(noun: str) -> str:
    """Return the plural of a noun."""
    return f"{noun}s"


def make_sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}."
