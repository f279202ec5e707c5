"""The table of `lgzoo list ancestries`: what timm's registry says of well-known ViTs. No weights,
no network.

python benchmarks/ancestries.py    rewrites learngene_zoo/pretrained/known.json (half a minute)
"""

import json

from learngene_zoo.pretrained.known import TABLE, describe_tag, tags
from learngene_zoo.settings import to_json


def main() -> None:
    """Write the table, a line for each model, so that a change of one is a change of a line."""
    rows = [json.dumps(to_json(describe_tag(group, tag))) for group, tag in tags()]
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    print(f"{len(rows)} models, {sum('null' not in row for row in rows)} of them open")


if __name__ == "__main__":
    main()
