"""A hook: it rejects people who are too old, and gives the others a score.

brimful run examples/checks/people.jsonl -o people.out.jsonl --rehearse --chat --n 4 --seed 1 --max-tokens 64 \
  --param response_format='{"type": "json_schema", "json_schema": {"name": "person", "schema":
    '"$(cat examples/checks/person.schema.json)"'}}' \
  --schema examples/checks/person.schema.json --hook examples/checks/scorer.py:score --tries 8
"""

from brimful.hooks import Again, Completion, Line


def score(line: Line, completion: Completion) -> dict[str, object]:
    person, oldest = completion.value, line.columns["oldest"]
    if person["age"] > oldest:
        raise Again(f"{person['age']} is older than {oldest}")
    return {"name": person["name"], "score": round(person["age"] / oldest, 3)}
