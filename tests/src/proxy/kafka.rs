//! Where Kafka's requests and answers end, and which request it is. A broker answers the requests of
//! a connection in their order. In answers it says where it is to be found: clients are to come back
//! to the proxy.

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

/// Whether the answer to such a request tells where brokers are: Metadata and `FindCoordinator`.
pub(super) fn tells_address(asked: &Kind) -> bool {
    matches!(asked, Kind::Api(3 | 10))
}

/// Puts another port behind the broker's host wherever `address` (`host:port`) is told: as text and
/// four bytes, in all versions of the protocol.
pub(super) fn redirect(answer: &mut [u8], address: &str, port: u16) {
    let Some((host, own)) = address.rsplit_once(':') else {
        return;
    };
    let Ok(own) = own.parse::<u16>() else {
        return;
    };
    let told = [host.as_bytes(), &i32::from(own).to_be_bytes()].concat();
    let starts = 0..(answer.len() + 1).saturating_sub(told.len());
    for at in starts {
        if answer[at..].starts_with(&told) {
            answer[at + host.len()..at + told.len()]
                .copy_from_slice(&i32::from(port).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::frame::all, *};

    #[test]
    fn the_address_of_the_broker_is_replaced_and_nothing_else() {
        let before = b"\x00\x09127.0.0.1\x00\x00\x23\x84..127.0.0.1\x00\x00\x23\x85";
        let mut answer = before.to_vec();
        redirect(&mut answer, "127.0.0.1:9092", 0x1234);
        let after = b"\x00\x09127.0.0.1\x00\x00\x12\x34..127.0.0.1\x00\x00\x23\x85";
        assert_eq!(answer, after);
        redirect(&mut [], "127.0.0.1:9092", 1);
    }

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
