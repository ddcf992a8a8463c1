//! Products of stored rows with vectors.

/// Numbers that are added in parallel.
const LANES: usize = 16;

/// Product of a stored row with a vector, summed in [`LANES`] lanes.
pub(crate) fn product(row: &[u8], vector: &[f32]) -> f32 {
    let (blocks, rest) = row.as_chunks::<{ 4 * LANES }>();
    let (lanes, rest_of_vector) = vector.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (block, lane) in blocks.iter().zip(lanes) {
        let (numbers, _) = block.as_chunks::<4>();
        for ((sum, number), other) in sums.iter_mut().zip(numbers).zip(lane) {
            *sum += f32::from_le_bytes(*number) * other;
        }
    }
    let (numbers, _) = rest.as_chunks::<4>();
    let tail: f32 =
        numbers.iter().zip(rest_of_vector).map(|(number, other)| f32::from_le_bytes(*number) * other).sum();
    sums.iter().sum::<f32>() + tail
}
