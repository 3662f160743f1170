// How many of the most likely tokens of a sample selfhash looks at, as in gpu/step.py.
const N_RANKED = 40u;
