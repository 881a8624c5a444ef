//! TLS, SASL and ACLs for a broker of our own, with certificates made by openssl.
//!
//! Beside its plain listener, which may do everything, a secured broker has three: one with TLS and SASL, one with TLS that wants
//! a certificate, and one with TLS that wants a token of an OIDC provider. Who comes through these may do what an ACL allows, and without any nothing at all.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::broker;
use crate::state;
use crate::tokens::{self, Tokens};

/// A user of the listener with SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: &'static str,
    /// Its password when the broker is made.
    pub password: &'static str,
    /// How it logs in; `OIDC` by a token that it gets for its password.
    pub mechanism: &'static str,
}

/// What makes a broker secure. Its files belong to the server's user, who must read some of them.
#[derive(Debug)]
pub struct Security {
    directory: PathBuf,
    /// The port for TLS and SASL.
    pub sasl_port: u16,
    /// The port for TLS with a certificate of the client.
    pub tls_port: u16,
    /// The port for TLS and tokens.
    pub oidc_port: u16,
    /// Who gives these tokens.
    pub tokens: Tokens,
    /// Who may log in.
    pub users: Vec<User>,
}

impl Security {
    /// Makes the authority and the broker's certificate in the new directory `directory`.
    pub fn create(directory: &Path, [sasl_port, tls_port, oidc_port]: [u16; 3], users: &[User]) -> Result<Security> {
        state::private_directory(directory)?;
        let directory = directory.canonicalize().with_context(|| format!("{directory:?} is gone"))?;
        let by_token = users.iter().filter(|user| user.mechanism == "OIDC");
        let clients = by_token.map(|user| (user.name.to_owned(), user.password.to_owned())).collect();
        let tokens = Tokens::serve(&directory, clients)?;
        let security = Security { directory, sasl_port, tls_port, oidc_port, tokens, users: users.to_vec() };
        let mut authority = state::as_server_user("openssl");
        authority.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority", "-days", "2"]);
        authority.arg("-keyout").arg(security.file("authority.key")).arg("-out").arg(security.authority());
        state::run(authority)?;
        security.certificate("broker", 2)?;
        Ok(security)
    }

    /// The certificate of who signs all others.
    pub fn authority(&self) -> PathBuf {
        self.file("authority.pem")
    }

    /// Makes a certificate with the common name `name` that is valid for so many days from now, or has been; key and
    /// certificate are in the file that is returned.
    pub fn certificate(&self, name: &str, days: i32) -> Result<PathBuf> {
        let script = "
            set -e
            umask 077
            cd \"$1\"
            openssl req -newkey rsa:2048 -nodes -keyout $2.key -out $2.request -subj /CN=$2
            echo 'subjectAltName=IP:127.0.0.1' >$2.extensions
            openssl x509 -req -in $2.request -CA authority.pem -CAkey authority.key -CAcreateserial -days $3 \\
                -extfile $2.extensions -out $2.certificate
            cat $2.key $2.certificate >$2.pem";
        let days = days.to_string();
        let mut make = state::as_server_user("sh");
        make.args(["-c", script, "sh"]).arg(&self.directory).args([name, &days]);
        state::run(make).with_context(|| format!("certificate of {name}"))?;
        Ok(self.file(&format!("{name}.pem")))
    }

    /// Writes a file that only the server's user can read, as the relay wants it for secrets.
    pub fn write_secrets(&self, name: &str, lines: &[(&str, &str)]) -> Result<PathBuf> {
        let text: String = lines.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let script = "umask 077; printf %s \"$2\" >\"$1\"";
        let path = self.file(name);
        let mut write = state::as_server_user("sh");
        write.args(["-c", script, "sh"]).arg(&path).arg(text);
        state::run(write).with_context(|| format!("could not write {path:?}"))?;
        Ok(path)
    }

    /// What the broker's `listeners` have to name.
    pub(crate) fn listeners(&self) -> String {
        let (sasl, tls, oidc) = (self.sasl_port, self.tls_port, self.oidc_port);
        format!(",SASL_SSL://127.0.0.1:{sasl},SSL://127.0.0.1:{tls},OIDC://127.0.0.1:{oidc}")
    }

    /// The broker's settings.
    pub(crate) fn properties(&self) -> String {
        let plain: String = self
            .users
            .iter()
            .filter(|user| user.mechanism == "PLAIN")
            .map(|user| format!(" user_{}=\"{}\"", user.name, user.password))
            .collect();
        format!(
            "\
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required{plain};
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";
listener.name.oidc.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oidc.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.oidc.oauthbearer.sasl.server.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.oidc.sasl.oauthbearer.jwks.endpoint.url={keys}
listener.name.oidc.sasl.oauthbearer.expected.audience={audience}
# Who does not show a newer token before the old one has expired is disconnected.
listener.name.oidc.oauthbearer.connections.max.reauth.ms=3600000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
# Who comes through the plain listener.
super.users=User:ANONYMOUS
# How long a refused login takes.
connection.failed.authentication.delay.ms=100
",
            keystore = self.file("broker.pem").display(),
            truststore = self.authority().display(),
            keys = self.keys_url(),
            audience = tokens::AUDIENCE,
        )
    }

    /// A broker reads keys only from where its Java machine allows.
    pub(crate) fn java_permissions(&self) -> Vec<String> {
        vec![format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={}", self.keys_url())]
    }

    fn keys_url(&self) -> String {
        format!("file://{}", self.tokens.keys().display())
    }

    /// Arguments for formatting the broker's storage.
    pub(crate) fn format_arguments(&self) -> Vec<String> {
        let scram = self.users.iter().filter(|user| user.mechanism.starts_with("SCRAM"));
        scram
            .flat_map(|user| {
                let login = format!("{}=[name={},password={}]", user.mechanism, user.name, user.password);
                ["--add-scram".to_owned(), login]
            })
            .collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Allows a principal to write to a topic, whether it exists or not.
pub fn allow_writing(bootstrap: &str, principal: &str, topic: &str) -> Result<()> {
    let principal = format!("User:{principal}");
    let args = ["--add", "--allow-principal", &principal, "--operation", "Write", "--topic", topic];
    broker::administer("org.apache.kafka.tools.AclCommand", bootstrap, &args)
}

/// Gives a SCRAM user another password.
pub fn change_password(bootstrap: &str, user: User, password: &str) -> Result<()> {
    let login = format!("{}=[password={password}]", user.mechanism);
    let args = ["--alter", "--add-config", &login, "--entity-type", "users", "--entity-name", user.name];
    broker::administer("kafka.admin.ConfigCommand", bootstrap, &args)
}
