//! An OIDC provider of our own, as small as it can be: an endpoint on 127.0.0.1 that gives a signed token to a client that shows
//! its secret, and a file with the key by which a broker knows such a token.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use crate::state;

/// For whom the tokens are: what a broker has to expect.
pub const AUDIENCE: &str = "kafka";

/// How long a token counts. A client has to come back for the next one soon.
pub const LIFETIME: Duration = Duration::from_secs(10);

/// The longest that a client may take to say what it wants.
const REQUEST_AT_MOST: Duration = Duration::from_secs(5);

/// The endpoint. It serves until the process ends.
#[derive(Debug)]
pub struct Tokens {
    directory: PathBuf,
    port: u16,
    given: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Tokens {
    /// Makes a key in `directory` and serves the clients with these ids and secrets.
    pub fn serve(directory: &Path, clients: BTreeMap<String, String>) -> Result<Tokens> {
        let listener = TcpListener::bind("127.0.0.1:0").context("could not listen for those who want tokens")?;
        let port = listener.local_addr().context("the address of the token endpoint")?.port();
        let tokens = Tokens { directory: directory.to_owned(), port, given: Arc::default() };
        state::run(Command::new("openssl").args(["genrsa", "-out"]).arg(tokens.key()).arg("2048"))?;
        let keys = tokens.keys();
        fs::write(&keys, tokens.public_key()?).with_context(|| format!("could not write {keys:?}"))?;
        let counter = Counter { key: tokens.key(), clients, given: Arc::clone(&tokens.given) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if let Err(error) = stream.context("accept").and_then(|stream| counter.serve(&stream)) {
                    eprintln!("the token endpoint: {error:#}");
                }
            }
        });
        Ok(tokens)
    }

    /// What goes into `sasl.oauthbearer.token.endpoint.url`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/token", self.port)
    }

    /// How many tokens a client has been given.
    pub fn given_to(&self, client: &str) -> u32 {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).get(client).copied().unwrap_or_default()
    }

    /// The set of keys (JWKS) that a broker has to trust.
    pub(crate) fn keys(&self) -> PathBuf {
        self.directory.join("tokens.jwks")
    }

    fn key(&self) -> PathBuf {
        self.directory.join("tokens.key")
    }

    fn public_key(&self) -> Result<String> {
        let printed = state::run(Command::new("openssl").args(["rsa", "-noout", "-modulus", "-in"]).arg(self.key()))?;
        let hex = printed.trim().strip_prefix("Modulus=").context("openssl printed no modulus")?;
        let modulus: Vec<u8> = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16))
            .collect::<Result<_, _>>()
            .context("the modulus is no number")?;
        // openssl's keys have 65537 as their exponent.
        let key = json!({"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "n": url_safe(&modulus), "e": "AQAB"});
        Ok(json!({"keys": [key]}).to_string())
    }
}

/// What the thread behind the endpoint knows.
struct Counter {
    key: PathBuf,
    clients: BTreeMap<String, String>,
    given: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Counter {
    fn serve(&self, stream: &TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(REQUEST_AT_MOST)).context("a limit for reading")?;
        let shown = read_credentials(&mut BufReader::new(stream)).context("could not read a request")?;
        let (status, answer) = match shown.split_once(':') {
            Some((client, secret)) if self.clients.get(client).is_some_and(|right| right == secret) => {
                *self.given.lock().unwrap_or_else(PoisonError::into_inner).entry(client.to_owned()).or_default() += 1;
                let token = self.token(client)?;
                ("200 OK", json!({"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME.as_secs()}))
            }
            _ => ("401 Unauthorized", json!({"error": "invalid_client", "error_description": "no such client"})),
        };
        let answer = answer.to_string();
        let length = answer.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        let mut stream = stream;
        stream.write_all((head + &answer).as_bytes()).context("could not answer")
    }

    /// A token for a client, in JWT's compact form.
    fn token(&self, client: &str) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("before 1970")?.as_secs();
        let claims = json!({"sub": client, "aud": AUDIENCE, "iat": now, "exp": now + LIFETIME.as_secs()});
        let header = json!({"alg": "RS256", "kid": "1", "typ": "JWT"});
        let signed = format!("{}.{}", url_safe(header.to_string().as_bytes()), url_safe(claims.to_string().as_bytes()));
        let (text, signature) = (self.key.with_extension("text"), self.key.with_extension("signature"));
        fs::write(&text, &signed).with_context(|| format!("could not write {text:?}"))?;
        let mut sign = Command::new("openssl");
        sign.args(["dgst", "-sha256", "-sign"]).arg(&self.key).arg("-out").arg(&signature).arg(&text);
        state::run(sign)?;
        let signature = fs::read(&signature).with_context(|| format!("could not read {signature:?}"))?;
        Ok(format!("{signed}.{}", url_safe(&signature)))
    }
}

/// Reads a request to its end and returns what it shows, `id:secret`; nothing if it shows nothing.
fn read_credentials(request: &mut BufReader<&TcpStream>) -> Result<String> {
    let (mut shown, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        ensure!(request.read_line(&mut line)? > 0, "it has no end");
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        match name.to_ascii_lowercase().as_str() {
            "authorization" => {
                let basic = value.trim().strip_prefix("Basic ").context("another way to log in than Basic")?;
                shown = String::from_utf8(STANDARD.decode(basic)?)?;
            }
            "content-length" => length = value.trim().parse().context("its length")?,
            _ => {}
        }
    }
    request.read_exact(&mut vec![0; length])?;
    Ok(shown)
}

fn url_safe(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
