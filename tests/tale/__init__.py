"""How the bundled model was made: corpus generator, tokenizer, training, export, evaluation.

The product has only the result, `app/tale/model` and `app/tale/draft`. This needs torch.
"""
