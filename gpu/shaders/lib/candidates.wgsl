// The most likely tokens of a row, for people to see.
// use: ranking
const N_CANDIDATES = 20u;

var<workgroup> n_listed: atomic<u32>;
var<workgroup> listed_ids: array<u32, N_CANDIDATES>;
var<workgroup> listed_keys: array<u32, N_CANDIDATES>;

// Lists the n most likely tokens, in no order yet; ties at the end by id.
fn list_candidates(n: u32) {
  let last = search(0u, false, f32(n), false);
  let ties = standing_of(last.key);
  let n_tied = n - ties.n_above; // of them as many are listed
  var last_id = NO_ID;
  if (n_tied < ties.n_equal) { last_id = nth_tied(last.key, n_tied - 1u); }
  if (lane == 0u) { atomicStore(&n_listed, 0u); }
  workgroupBarrier();
  for (var chunk = lane; chunk * 4u < VOCAB; chunk += LANES) {
    let four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      let id = chunk * 4u + j;
      let key = key_of(four[j]);
      let listed = key > last.key || (key == last.key && id <= last_id);
      if (listed && id < VOCAB) {
        let at = atomicAdd(&n_listed, 1u);
        listed_ids[at] = id;
        listed_keys[at] = key;
      }
    }
  }
  workgroupBarrier();
}

fn place_of(candidate: u32, n: u32) -> u32 {
  var place = 0u;
  for (var other = 0u; other < n; other++) {
    let ahead = listed_keys[other] > listed_keys[candidate]
      || (listed_keys[other] == listed_keys[candidate]
          && listed_ids[other] < listed_ids[candidate]);
    place += select(0u, 1u, ahead);
  }
  return place;
}
