"""The engines that judge records and make batches: pairing (data in hand) and derived (a model is asked)."""
