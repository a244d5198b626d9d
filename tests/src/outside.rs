//! A server outside of the product: it keeps what it was sent, and answers what a test says.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What it does with a request that it has read.
pub enum Answer {
    /// Answers with this status and the number of the request as `id`.
    Status(u16),
    /// Keeps the connection and never answers.
    Never,
    /// Closes the connection without an answer.
    Close,
    /// Answers with this status once the wait is over.
    After(Pin<Box<dyn Future<Output = ()> + Send>>, u16),
}

impl From<Option<u16>> for Answer {
    fn from(status: Option<u16>) -> Self {
        status.map_or(Self::Never, Self::Status)
    }
}

/// The server; it ends with the test.
pub struct Outside {
    pub url: String,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Outside {
    /// Starts one that asks `answer` about the head of each request and its number from 1.
    pub async fn new<A: Into<Answer>>(
        answer: impl Fn(&str, usize) -> A + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let (list, answer) = (sent.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (list, answer) = (list.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let Some(head) = read(&mut stream).await else { return };
                    let number = {
                        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                        list.push(head.clone());
                        list.len()
                    };
                    let answer = answer(&head, number).into();
                    reply(stream.into_inner(), answer, number).await;
                });
            }
        });
        Self { url, sent }
    }

    /// Gives the heads of all requests in the order of their coming.
    pub fn all(&self) -> Vec<String> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts the requests whose head begins like this: with a method, or that and a path.
    pub fn sent(&self, start: &str) -> usize {
        self.all().iter().filter(|head| head.starts_with(start)).count()
    }
}

/// Gives a header of a request's head, its name in lower case.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Reads a request whole and gives its head, names of headers in lower case; nothing of one that
/// breaks off: it may as well not have been sent.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let length = header(&head, "content-length").map_or(Ok(0), str::parse).ok()?;
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    Some(head)
}

async fn reply(mut stream: TcpStream, answer: Answer, number: usize) {
    let status = match answer {
        Answer::Status(status) => status,
        Answer::Close => return,
        Answer::Never => {
            // Until the other side gives up.
            let _ = stream.read_u8().await;
            return;
        }
        Answer::After(wait, status) => {
            wait.await;
            status
        }
    };
    let body = format!("{{\"id\":{number}}}");
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).await;
}
