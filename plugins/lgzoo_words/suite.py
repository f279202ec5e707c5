"""The suite `words`: text tasks.

Four tasks are made by rules, so that they need no file and every text is a function of split and
index. In three of them both classes have the same words equally often: a bag of words is at chance,
and a model that is better has learnt their order. Three tasks are real texts that a package manager
installs; each looks in the folder of the package and below the folder that `LGZOO_WORDS` names, and
if it finds nothing the error shows the command that installs it.
"""

from __future__ import annotations

from collections.abc import Mapping

from learngene_zoo.plugin import Entry, Suite, Task, split_sizes

VERSION = 1  # of the rules; another version has other test texts
RULE_SIZES = (4_000, 500, 1_000)


def _make_entry(
    name: str,
    title: str,
    classes: int,
    description: str,
    sizes: tuple[int, int, int] = RULE_SIZES,
    licence: str = "Apache-2.0",
    source: str = "built in",
) -> Entry:
    return Entry(
        name=name,
        title=title,
        kind="text",
        classes=classes,
        sizes=split_sizes(*sizes),
        licence=licence,
        description=description,
        source=source,
        image_size=0,
    )


ACCEPTABILITY = _make_entry(
    "acceptability",
    "does the verb agree with its subject",
    2,
    "Sentences made by rules, with a noun of the other number between subject and verb. Both"
    " classes have the same words.",
)
PARAPHRASE = _make_entry(
    "paraphrase",
    "do two sentences tell the same",
    2,
    "Pairs of sentences made by rules: active, passive and cleft, with the same roles or exchanged"
    " ones. Both classes have the same words.",
)
ENTAILMENT = _make_entry(
    "entailment",
    "does the second sentence follow from the first",
    2,
    "Pairs of sentences made by rules with all, some, none and not all, of which one is more"
    " specific. Both classes have the same words.",
)
SENTIMENT = _make_entry(
    "sentiment",
    "is the final judgement good or bad",
    2,
    "Reviews of one or two clauses made by rules, with negations, and, but and although. Words"
    " alone decide many of them.",
)
DEBIAN_SECTIONS = _make_entry(
    "debian_sections",
    "sections of Debian packages",
    20,
    "The one-line description of a package, in 20 sections; the splits share no source package."
    " From apt-cache dumpavail.",
    (20_000, 2_000, 5_000),
    "those of the packages",
    "apt-cache dumpavail",
)
WORDNET = _make_entry(
    "wordnet",
    "WordNet's nouns by lexicographer file",
    26,
    "The definition of a noun, in 26 topics from act to time. From Debian's package wordnet-base.",
    (56_000, 8_000, 16_000),
    "WordNet 3.0",
    "WordNet 3.0",
)
SNIPPETS = _make_entry(
    "snippets",
    "rated snippets of film reviews",
    2,
    "Snippets of film reviews whose mean rating by 20 people is at least 0.5 away from neutral."
    " From the source package of vaderSentiment 3.3.2.",
    (6_900, 950, 2_000),
    "MIT",
    "Hutto and Gilbert 2014",
)
RULES = (ACCEPTABILITY, PARAPHRASE, ENTAILMENT, SENTIMENT)
REAL = (DEBIAN_SECTIONS, WORDNET, SNIPPETS)
CLASS_NAMES: Mapping[str, tuple[str, str]] = {
    "acceptability": ("unacceptable", "acceptable"),
    "paraphrase": ("different", "same"),
    "entailment": ("not_entailed", "entailed"),
    "sentiment": ("bad", "good"),
}


def open_task(entry: Entry, offline: bool) -> Task:
    """Open the task of an entry of this suite."""
    if entry in RULES:
        from lgzoo_words.written import open_rules

        return open_rules(entry, CLASS_NAMES[entry.name], VERSION)
    from lgzoo_words.opening import open_real

    return open_real(entry)


WORDS = Suite(
    name="words",
    title="texts made by rules, and texts from packages",
    entries=(*RULES, *REAL),
    open=open_task,
    tasks=tuple(entry.name for entry in RULES),
    generated=tuple(entry.name for entry in RULES),
    version=VERSION,
)
