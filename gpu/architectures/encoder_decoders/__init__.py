"""Encoder-decoders: architectures that read a text in an encoder and write another one in a
decoder, whose layers also attend to the encoder's last states."""
