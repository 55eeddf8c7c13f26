"""The mock model: what a request to the mock gateway is answered with. Imported by the gateway only."""
