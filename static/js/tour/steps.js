// The twelve steps of the walk, in their order.
//
//   title
//   open    name of the instrument to open; null: none
//   sheet   on a phone: the part of the bench that is opened over the text
//   metric  what the core's colour shows meanwhile
//   find(walk)          asks what the step needs; optional
//   at(walk, found)     what the core looks at: {index, row}; the followed token where left out
//   enter(walk, found)  sets up the instrument; may return what puts it back
//   say(walk, found)    its sentences (words.js)
//   marks(walk, found)  the places it speaks about, each a list of elements that lie together

import { cost, kept, yours } from "./engine.js";
import { appears, grows, habit, looks, mlp } from "./layers.js";
import { cut, vector } from "./reading.js";
import { chances, draw } from "./choosing.js";

export const STEPS = [cut, vector, grows, looks, habit, mlp, appears, chances, draw, kept, cost, yours];
