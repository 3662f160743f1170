// Where the filters and the draw cut the falling order of tokens.
// use: candidates

// The tokens that survive: all that reach `floor`.
struct Kept {
  floor: u32,
  n: u32,
  mass: f32,
}

// The token that answers the query among those kept: in the first window, or wherever it is.
fn locate(row: Quads, first: Window, greatest: u32, kept: Kept, query: Query) -> Place {
  var window = first;
  var floor = kept.floor;
  let here = first.n > 0u && (floor >= first.low || reaches(query, f32(first.n), first.mass));
  if (!here) {
    var span = Span(floor, first.low, kept.n - first.n, first.n, first.mass);
    if (span.n > CAPACITY) {
      span.low = lightest(span, greatest, kept, query);
      span = narrow(row, span, query, CAPACITY);
    }
    if (span.n > CAPACITY) { return place_of_tied(row, span, query); }
    if (span.n > 0u) {
      window = next_window(row, span);
      floor = span.low;
    }
  }
  return place_in(window, query, floor);
}

fn next_window(row: Quads, span: Span) -> Window {
  let n = collect(row, Wanted(span.low, span.high, NO_ID), CAPACITY);
  sort(CAPACITY, n);
  let mass = add_up(CAPACITY, n, span.mass_above);
  return Window(CAPACITY, n, span.n_above, span.low, mass);
}

// A key below which tokens are so light that all together they cannot matter to the query. It
// leaves two keys at least, so that how many tokens have them is counted.
fn lightest(span: Span, greatest: u32, kept: Kept, query: Query) -> u32 {
  let light = kept.mass - query.wanted;
  if (!query.by_mass || !(light > 1e-4 * kept.mass)) { return span.low; } // also when it is NaN
  let key = key_of(logit_of(greatest) + log(light / f32(VOCAB)) - 1.0);
  return max(span.low, min(key, span.high - 2u));
}

// Among more equal tokens than a window holds. Only a draw asks for one of them.
fn place_of_tied(row: Quads, span: Span, query: Query) -> Place {
  let mass = mass_of(span.low);
  var id = NO_ID;
  if (query.beyond) {
    let share = max(0.0, (query.wanted - span.mass_above) / mass);
    id = nth_tied(row, span.low, min(u32(share), span.n - 1u));
  }
  let mass_through = span.mass_above + mass * f32(span.n);
  if (lane == 0u) {
    shared_place = Place(span.low, id, span.n_above, span.n_above + span.n, mass_through);
  }
  return workgroupUniformLoad(&shared_place);
}

// What is kept of tokens that reach `floor`.
fn reaching(row: Quads, first: Window, floor: u32) -> Kept {
  if (first.n > 0u && floor >= first.low) {
    let last = place_in(first, Query(false, false, f32(VOCAB)), floor);
    return Kept(floor, last.n_through, last.mass_through);
  }
  tally(row, Span(floor, floor + 1u, 0u, 0u, 0.0), 0u);
  let n = workgroupUniformLoad(&pivot_counts[0]);
  return Kept(floor, u32(n), workgroupUniformLoad(&pivot_masses[0]));
}
