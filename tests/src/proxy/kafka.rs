//! Where Kafka's requests and answers end, and which request it is. A broker answers the requests of
//! a connection in their order.

use super::frame::{Cut, Kind};

const LARGEST: usize = 512 * 1024 * 1024;

fn frame(buffer: &[u8]) -> Result<Option<&[u8]>, ()> {
    let Some(length) = buffer.get(..4).and_then(|four| four.try_into().ok()) else {
        return Ok(None);
    };
    let length = usize::try_from(i32::from_be_bytes(length)).map_err(|_| ())?;
    if !(4..=LARGEST).contains(&length) {
        return Err(());
    }
    Ok(buffer.get(..4 + length))
}

/// The client's side.
pub(super) fn request(buffer: &[u8]) -> Cut {
    match frame(buffer) {
        Err(()) => Cut::Unreadable,
        Ok(None) => Cut::More,
        Ok(Some(frame)) => Cut::Frame {
            length: frame.len(),
            kind: Some(Kind::Api(i16::from_be_bytes([frame[4], frame[5]]))),
        },
    }
}

/// The server's side: each is an answer.
pub(super) fn reply(buffer: &[u8]) -> Cut {
    match frame(buffer) {
        Err(()) => Cut::Unreadable,
        Ok(None) => Cut::More,
        Ok(Some(frame)) => Cut::Frame {
            length: frame.len(),
            kind: Some(Kind::Other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{super::frame::all, *};

    #[test]
    fn requests_are_found_however_they_are_cut() {
        let mut bytes = vec![0, 0, 0, 10, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff];
        bytes.extend([0, 0, 0, 8, 0, 8, 0, 7, 0, 0, 0, 2]);
        for size in 1..=bytes.len() {
            let found = all(&bytes, size, request);
            assert_eq!(found, [Some(Kind::PRODUCE), Some(Kind::OFFSET_COMMIT)]);
            assert_eq!(all(&bytes, size, reply).len(), 2);
        }
        assert_eq!(request(&[0xff, 0xff, 0xff, 0xff]), Cut::Unreadable);
    }
}
