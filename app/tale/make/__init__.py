"""Making of the bundled model: corpus generator, tokenizer, training, export, evaluation.

Nothing here is imported at run time. It needs torch.
"""
