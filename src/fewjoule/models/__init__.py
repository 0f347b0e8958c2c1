"""What a model is: one flat vector of weights with a loss, the built-in nets, and files of weights."""
