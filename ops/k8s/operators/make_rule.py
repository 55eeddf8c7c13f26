"""Writes prometheusrule.yaml from ops/prometheus: the Prometheus operator loads rules from objects only."""

from __future__ import annotations

import textwrap
from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "prometheus"
HEAD = """\
# yamllint disable rule:line-length
# Made by make_rule.py from ops/prometheus/alerts.yml and scaling.yml: change those.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: brimful
spec:
  groups:
"""


def main() -> None:
    groups = [(RULES / name).read_text("utf-8").partition("\ngroups:\n")[2] for name in ("alerts.yml", "scaling.yml")]
    (HERE / "prometheusrule.yaml").write_text(HEAD + textwrap.indent("\n".join(groups), "  "), "utf-8")


if __name__ == "__main__":
    main()
