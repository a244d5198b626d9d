//! `standfast token`: makes, lists and revokes tokens, directly on the store.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use standfast_domain::ids::Principal;
use standfast_engine::tokens::{Role, Token, Tokens};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::quantities::when_both;
use crate::show::table::Table;
use crate::wiring::stores::{self, StoreArgs};

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast token create --role publisher --name user:ana --redis redis://127.0.0.1:6379
  standfast token list
  standfast token revoke k1f0c2e9ab34d")]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token; only its secret is printed, and only now
    Create(CreateArgs),
    /// List the tokens that are alive
    List(ListArgs),
    /// End a token; processes may honour it for five seconds more
    Revoke(RevokeArgs),
}

#[derive(Args, Debug)]
struct CreateArgs {
    /// What it allows: admin everything; publisher submits, sees and steers its own tasks;
    /// worker announces handlers and claims attempts
    #[arg(long, value_enum)]
    role: RoleArg,
    /// Whom it names, such as user:ana or service:billing
    #[arg(long, value_name = "PRINCIPAL", value_parser = principal)]
    name: Principal,
    /// What it is for
    #[arg(long, default_value = "", hide_default_value = true)]
    label: String,
    /// Make it only if no token is alive; otherwise print nothing
    #[arg(long, conflicts_with = "label")]
    if_none: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Args, Debug)]
struct RevokeArgs {
    /// The token's id, as listed
    id: String,
    #[command(flatten)]
    store: StoreArgs,
}

/// A role as it is typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    Admin,
    Publisher,
    Worker,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Admin => Self::Admin,
            RoleArg::Publisher => Self::Publisher,
            RoleArg::Worker => Self::Worker,
        }
    }
}

fn principal(text: &str) -> Result<Principal, String> {
    Principal::new(text).map_err(|fault| fault.to_string())
}

/// Carries out one of the three.
pub async fn execute(args: TokenArgs) -> Result<Exit, Failure> {
    match args.command {
        TokenCommand::Create(args) => create(args).await?,
        TokenCommand::List(args) => list(args).await?,
        TokenCommand::Revoke(args) => return revoke(args).await,
    }
    Ok(Exit::Completed)
}

async fn create(args: CreateArgs) -> Result<(), Failure> {
    let tokens = Tokens::new(stores::engine(&args.store).await?);
    let role = args.role.into();
    let issued = match args.if_none {
        true => tokens.create_first(role, &args.name).await,
        false => tokens.create(role, &args.name, &args.label).await.map(Some),
    };
    match issued.map_err(stores::failure)? {
        Some(issued) => {
            look::line(&issued.secret)?;
            look::note(&format!("token {} for {}; it is not shown again", issued.id, args.name));
        }
        None => look::note("a token exists already; none was made"),
    }
    Ok(())
}

async fn list(args: ListArgs) -> Result<(), Failure> {
    let tokens = Tokens::new(stores::engine(&args.store).await?);
    let tokens = tokens.list().await.map_err(stores::failure)?;
    if args.json {
        return look::json(&json!({ "tokens": tokens.iter().map(shown).collect::<Vec<_>>() }));
    }
    if tokens.is_empty() {
        look::note("no tokens");
    }
    let look = Look::of_stdout();
    let columns = [("TOKEN", 16), ("ROLE", 10), ("NAME", 40), ("MADE", 40), ("LABEL", usize::MAX)];
    let mut table = Table::new(&columns);
    for token in &tokens {
        table.row(vec![
            token.id.clone(),
            token.role.as_str().to_owned(),
            token.principal.to_string(),
            when_both(&token.created_at.rfc3339(), &look),
            token.label.clone(),
        ]);
    }
    look::lines(table.lines(&look))
}

/// What is kept of a token, its digest excepted: that is nobody's business.
fn shown(token: &Token) -> Value {
    json!({
        "id": token.id,
        "principal": token.principal,
        "role": token.role.as_str(),
        "label": token.label,
        "created_at": token.created_at.rfc3339(),
    })
}

async fn revoke(args: RevokeArgs) -> Result<Exit, Failure> {
    let tokens = Tokens::new(stores::engine(&args.store).await?);
    if tokens.revoke(&args.id).await.map_err(stores::failure)? {
        look::line(&format!("token {} is revoked", args.id))?;
        return Ok(Exit::Completed);
    }
    Err(Failure::new(format!("there is no token `{}`", args.id)).and("see: standfast token list"))
}
