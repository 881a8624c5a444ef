//! The directory that holds all that is made here, and the user as whom servers run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The state directory; `pg_test/bin/state` decides where and makes it.
pub fn directory() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bin/state");
    let printed = run(Command::new(&script))?;
    let directory = PathBuf::from(printed.trim());
    ensure!(directory.is_dir(), "{} printed {directory:?}, which is no directory", script.display());
    Ok(directory)
}

/// The programs of the private copy of Postgres; `pg_test/bin/with-state` says which copy that is.
pub fn postgres_programs() -> Result<PathBuf> {
    if let Some(pg_config) = std::env::var_os("OUTBOX_RELAY_PG_CONFIG") {
        let programs = Path::new(&pg_config).parent().context("OUTBOX_RELAY_PG_CONFIG is no path")?;
        return Ok(programs.to_owned());
    }
    let versions = directory()?.join("pg/lib/postgresql");
    let newest = fs::read_dir(&versions)
        .with_context(|| format!("no private copy of Postgres in {versions:?}; pg_test/bin/private-postgres makes it"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .with_context(|| format!("{versions:?} holds no version"))?;
    Ok(versions.join(newest.to_string()).join("bin"))
}

/// The programs of the other private copy, whose extension has the test hooks.
pub fn postgres_programs_with_test_hooks() -> Result<PathBuf> {
    let state = directory()?;
    let shipped = postgres_programs()?;
    let place = shipped.strip_prefix(state.join("pg")).with_context(|| format!("{shipped:?} is no private copy"))?;
    let programs = state.join("pg-hooks").join(place);
    ensure!(programs.is_dir(), "no Postgres with test hooks in {programs:?}; \"make test-hooks\" makes it");
    Ok(programs)
}

/// The jars of the broker.
pub fn kafka_libraries() -> Result<PathBuf> {
    libraries("kafka")
}

/// The jars of Debezium and of the Kafka Connect that runs it.
pub fn connect_libraries() -> Result<PathBuf> {
    libraries("connect")
}

fn libraries(name: &str) -> Result<PathBuf> {
    let libraries = directory()?.join(name).join("libs");
    ensure!(libraries.is_dir(), "no jars in {libraries:?}; \"pg_test/bin/fetch-jars {name}\" brings them");
    Ok(libraries)
}

/// The version of an artifact, from the name of its jar.
pub fn version_of(artifact: &str, libraries: &Path) -> Result<String> {
    let jars = fs::read_dir(libraries).with_context(|| format!("could not read {libraries:?}"))?;
    jars.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find_map(|name| Some(name.strip_prefix(artifact)?.strip_prefix('-')?.strip_suffix(".jar")?.to_owned()))
        .with_context(|| format!("there is no jar of {artifact} in {libraries:?}"))
}

/// Postgres refuses to run as root: then its programs run as the user `postgres`.
pub fn server_user() -> Option<&'static str> {
    let root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    root.then_some("postgres")
}

/// Makes a directory that belongs to the server's user and is closed to all others but root.
pub fn private_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("could not make {path:?}"))?;
    if let Some(user) = server_user() {
        run(Command::new("chown").arg(format!("{user}:")).arg(path))?;
    }
    run(Command::new("chmod").arg("0700").arg(path))?;
    Ok(())
}

/// `program` as the server's user.
pub fn as_server_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = match server_user() {
        Some(user) => {
            let mut setpriv = Command::new("setpriv");
            setpriv
                .arg(format!("--reuid={user}"))
                .arg(format!("--regid={user}"))
                .args(["--init-groups", "--"])
                .arg(program);
            setpriv
        }
        None => Command::new(program),
    };
    // Root's own directory is closed to that user.
    command.current_dir("/");
    clean_environment(&mut command);
    command
}

/// Takes out what would change how servers behave or talk.
pub fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        // RUST_BACKTRACE in a postmaster turns ordinary errors of a pgrx extension into pages of DETAIL.
        if name == "RUST_BACKTRACE" || name.to_string_lossy().starts_with("PG") {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C");
}

/// Runs a program to its end and returns what it printed; what it complained of is in the error.
pub fn run(command: impl std::borrow::BorrowMut<Command>) -> Result<String> {
    let mut command = command;
    let command = command.borrow_mut();
    let output = command.output().with_context(|| format!("could not start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "{:?} {:?} ended with {}: {}",
            command.get_program(),
            command.get_args().collect::<Vec<_>>(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
