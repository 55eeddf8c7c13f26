"""The mock gateway's Jobs API: submitted requests that run in the background and keep their results.

Imported by the gateway only.
"""
