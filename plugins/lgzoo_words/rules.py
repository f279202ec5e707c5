"""The rules of `acceptability`, `paraphrase`, `entailment` and `sentiment`.

Each function maps a class and the draws of a text to a text or a pair of texts. In the first three
the class only decides the order of words that are drawn without it, and the words that are
exchanged are drawn from one distribution. So a bag of words has the same probability in both
classes, and no function of the bag is better than chance. Neither is a linear function of adjacent
pairs of words: the words that decide the class together are never adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lgzoo_words.draws import Draws
from lgzoo_words.lexicon import (
    ADJECTIVES,
    BAD,
    FREQUENCIES,
    GOOD,
    INTENSIFIERS,
    INTENSIFIERS_OF_NEGATIONS,
    INTRANSITIVE,
    MANNERS,
    NOUNS,
    PREPOSITIONS,
    RESTRICTIONS,
    SUBJECTS,
    TIMES,
    TRANSITIVE,
    inflect,
    make_past,
    make_plural,
    make_sentence,
)

Text = str | tuple[str, str]
# Quantifiers, and whether a statement about a more specific noun, or a more specific verb phrase,
# follows from one about the more general.
QUANTIFIERS = (
    ("all of", True, False),
    ("some of", False, False),
    ("none of", True, True),
    ("not all of", False, True),
)


def write_acceptability(label: int, draws: Draws) -> str:
    """Return a sentence whose verbs agree with their subjects if `label` is 1.

    Its two nouns differ in number, and the class decides which of them comes first.
    """
    one, other = draws.pick_two(NOUNS)
    is_plural = draws.happens()  # of the verb, and so of its subject in acceptable sentences
    agreeing, attractor = (make_plural(one), other) if is_plural else (one, make_plural(other))
    first, second = (agreeing, attractor) if label else (attractor, agreeing)
    kind = draws.pick(("preposition", "subject", "object"))
    if kind == "preposition":
        middle = f"{draws.pick(PREPOSITIONS)} the {second}"
    elif kind == "subject":
        middle = f"that {draws.pick(FREQUENCIES)} {_agree(draws, is_plural)} the {second}"
    else:
        middle = f"that the {second} {draws.pick(FREQUENCIES)} {_agree(draws, not is_plural)}"
    verb = inflect(draws.pick(INTRANSITIVE), is_plural)
    adverb, end = draws.pick(FREQUENCIES), draws.pick(MANNERS)
    return make_sentence(f"the {first} {middle} {adverb} {verb} {end}")


def _agree(draws: Draws, is_plural: bool) -> str:
    return inflect(draws.pick(TRANSITIVE), is_plural)


def write_paraphrase(label: int, draws: Draws) -> tuple[str, str]:
    """Return two sentences with the same roles if `label` is 1.

    Otherwise the nouns, or only their adjectives, are exchanged in the second sentence.
    """
    nouns, adjectives = draws.pick_two(NOUNS), draws.pick_two(ADJECTIVES)
    verb, time = make_past(draws.pick(TRANSITIVE)), draws.pick(TIMES)
    is_exchanged = draws.happens()  # in which of the two ways, if the roles differ
    others = nouns if label or is_exchanged else nouns[::-1]
    other_adjectives = adjectives[::-1] if not label and is_exchanged else adjectives
    first_form, second_form = draws.pick_two(FORMS)
    first, second = (
        make_sentence(f"{form(*_name(names, words), verb)} {time}")
        for form, names, words in (
            (first_form, nouns, adjectives),
            (second_form, others, other_adjectives),
        )
    )
    return first, second


def _name(nouns: tuple[str, str], adjectives: tuple[str, str]) -> tuple[str, str]:
    agent, patient = (f"the {word} {noun}" for word, noun in zip(adjectives, nouns))
    return agent, patient


def write_active(agent: str, patient: str, verb: str) -> str:
    """Return an active clause."""
    return f"{agent} once {verb} {patient}"


def write_passive(agent: str, patient: str, verb: str) -> str:
    """Return the same in the passive."""
    return f"{patient} was once {verb} by {agent}"


def write_cleft(agent: str, patient: str, verb: str) -> str:
    """Return the same with the agent in front."""
    return f"it was {agent} that once {verb} {patient}"


def write_passive_cleft(agent: str, patient: str, verb: str) -> str:
    """Return the same with the patient in front."""
    return f"it was {patient} that was once {verb} by {agent}"


FORMS = (write_active, write_passive, write_cleft, write_passive_cleft)


def write_entailment(label: int, draws: Draws) -> tuple[str, str]:
    """Return two sentences of which the second follows from the first if `label` is 1.

    One of them has a more specific noun or verb phrase than the other.
    """
    quantifier, noun_direction, verb_direction = draws.pick(QUANTIFIERS)
    noun, verb = make_plural(draws.pick(NOUNS)), make_past(draws.pick(TRANSITIVE))
    shared, patient = draws.pick(ADJECTIVES), draws.pick(NOUNS)
    is_noun = draws.happens()
    place, detail = draws.pick(TIMES), draws.pick(MANNERS)
    general = f"{quantifier} the {noun} {verb} the {shared} {patient}"
    if is_noun:
        restriction = draws.pick(RESTRICTIONS)
        specific = f"{quantifier} the {noun} {restriction} {verb} the {shared} {patient}"
        follows = noun_direction
    else:
        specific, follows = f"{general} {detail}", verb_direction
    # `follows`: from the general sentence to the specific one
    pair = (general, specific) if follows == bool(label) else (specific, general)
    first, second = (make_sentence(f"{place} {text}") for text in pair)
    return first, second


def write_sentiment(label: int, draws: Draws) -> str:
    """Return a review with a good judgement at the end if `label` is 1.

    The clause after "but", or beside "although", decides; a negation reverses an adjective.
    """
    subjects = draws.pick_two(SUBJECTS)
    decisive = _judge(subjects[0], bool(label), draws)
    form = draws.pick(("alone", "alone", "and", "and", "but", "although"))
    other = _judge(subjects[1], bool(label) == (form == "and"), draws)
    if form == "and":
        return make_sentence(f"{other}, and {decisive}")
    if form == "but":
        return make_sentence(f"{other}, but {decisive}")
    if form == "although":
        return make_sentence(f"although {other}, {decisive}")
    return make_sentence(decisive)


def _judge(subject: str, is_good: bool, draws: Draws) -> str:
    is_negated = draws.happens(0.2)
    adjective = draws.pick(GOOD if is_good != is_negated else BAD)
    word = draws.pick(INTENSIFIERS_OF_NEGATIONS if is_negated else INTENSIFIERS)
    return f"the {subject} was {'not ' if is_negated else ''}{word}{adjective}"


RULES: Mapping[str, Callable[[int, Draws], Text]] = {
    "acceptability": write_acceptability,
    "paraphrase": write_paraphrase,
    "entailment": write_entailment,
    "sentiment": write_sentiment,
}
