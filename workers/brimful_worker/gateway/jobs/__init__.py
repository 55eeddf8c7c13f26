"""The mock gateway's Jobs API: submitted work that runs in the background and keeps its result.

Imported by the gateway only.
"""
