"""How the bundled models were made: corpus generator, tokenizer, training, export, evaluation.

The product has only the result: `app/tale/model`, `app/tale/mixture` and `app/tale/draft`. This
needs torch, and the mixture transformers.
"""
