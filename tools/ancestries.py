"""Write the table of `lgzoo list ancestries`: timm's facts about well-known ViTs.

    python tools/ancestries.py      half a minute

It rewrites learngene_zoo/pretrained/known.json. No weights and no network are needed.
"""

import json

from learngene_zoo.pretrained.known import TABLE, describe_tag, list_tags
from learngene_zoo.settings import to_json


def main() -> None:
    """Write the table, a line for each model, so that a change of one is a change of a line."""
    rows = [json.dumps(to_json(describe_tag(group, tag))) for group, tag in list_tags()]
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    print(f"{len(rows)} models, {sum('null' not in row for row in rows)} of them open")


if __name__ == "__main__":
    main()
