"""How the bundled model was made: corpus generator, tokenizer, training, export, evaluation.

Nothing here is imported at run time. torch is needed only here.
"""
