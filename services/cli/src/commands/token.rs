//! `standfast token`: makes, lists and revokes tokens, directly on the store.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use standfast_domain::ids::Principal;
use standfast_domain::time::Span;
use standfast_engine::tokens::{Grant, Role, Token, Tokens};

use crate::commands::ceiling::CeilingArgs;
use crate::connect::demand_state;
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
  standfast token create --principal user:ana --role publisher --group maintainers --expires 90d
  standfast token create --principal service:shop --role publisher --ceiling shop.yaml
  standfast token create --principal user:ben --role participant
  standfast token create --principal service:shop --role publisher --amqp-user shop
  standfast token list --redis redis://127.0.0.1:6379
  standfast token revoke k1f0c2e9ab34d")]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token; only its secret is printed, and only now
    Create(Box<CreateArgs>),
    /// List the tokens that were not revoked
    List(ListArgs),
    /// End a token; processes may honour it for five seconds more
    Revoke(RevokeArgs),
}

#[derive(Args, Debug)]
struct CreateArgs {
    /// What it allows: admin everything; publisher submits, and acts on tasks as their people
    /// may; participant acts on tasks, submits none; worker announces handlers and claims
    /// attempts. May be repeated
    #[arg(long = "role", value_enum, required = true, value_name = "ROLE")]
    roles: Vec<RoleArg>,
    /// Whom it names, such as user:ana or service:billing
    #[arg(long, alias = "name", value_name = "PRINCIPAL", value_parser = principal)]
    principal: Principal,
    /// A group that it stands for besides, such as maintainers. May be repeated
    #[arg(long = "group", value_name = "GROUP", value_parser = group)]
    groups: Vec<Principal>,
    /// How long it is valid, such as 90d; without it until it is revoked
    #[arg(long, value_name = "SPAN", value_parser = span)]
    expires: Option<Span>,
    #[command(flatten)]
    ceiling: CeilingArgs,
    /// Make no secret, but say this of a user of the message broker
    #[arg(long, value_name = "USER", conflicts_with = "if_none")]
    amqp_user: Option<String>,
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
    Participant,
    Worker,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Admin => Self::Admin,
            RoleArg::Publisher => Self::Publisher,
            RoleArg::Participant => Self::Participant,
            RoleArg::Worker => Self::Worker,
        }
    }
}

/// Reads a principal.
pub fn principal(text: &str) -> Result<Principal, String> {
    Principal::new(text).map_err(|fault| fault.to_string())
}

/// Reads a group, with or without its kind.
fn group(text: &str) -> Result<Principal, String> {
    match text.contains(':') {
        true => principal(text),
        false => principal(&format!("group:{text}")),
    }
}

fn span(text: &str) -> Result<Span, String> {
    Span::parse(text).ok_or_else(|| "expected a span such as `90d` or `12h`".to_owned())
}

/// Carries out one of the three.
pub async fn execute(args: TokenArgs) -> Result<Exit, Failure> {
    match args.command {
        TokenCommand::Create(args) => create(*args).await?,
        TokenCommand::List(args) => list(args).await?,
        TokenCommand::Revoke(args) => return revoke(args).await,
    }
    Ok(Exit::Completed)
}

async fn create(args: CreateArgs) -> Result<(), Failure> {
    let grant = Grant {
        principal: args.principal,
        roles: args.roles.into_iter().map(Role::from).collect(),
        groups: args.groups.into_iter().collect(),
        ceiling: args.ceiling.read()?,
        expires: args.expires,
        label: args.label,
    };
    let faults = grant.faults();
    if !faults.is_empty() {
        let faults = faults.into_iter().map(|fault| (fault.pointer, fault.message));
        return Err(Failure::usage("there can be no such token").with_faults(faults));
    }
    let who = grant.principal.clone();
    if let Some(user) = &args.amqp_user {
        if args.store.redis.is_none() {
            let message = "--amqp-user is for an installation over Redis: a folder has no broker";
            return Err(Failure::usage(message).and("name the Redis with --redis"));
        }
        return grant_user(user, grant, &args.store).await;
    }
    let tokens = Tokens::new(stores::engine(&args.store).await?);
    let issued = match args.if_none {
        true => tokens.grant_first(grant).await,
        false => tokens.grant(grant).await.map(Some),
    };
    match issued.map_err(stores::failure)? {
        Some(issued) => {
            look::line(&issued.secret)?;
            look::note(&format!("token {} for {who}; it is not shown again", issued.id));
        }
        None => look::note("a token exists already; none was made"),
    }
    Ok(())
}

/// Says what a user of the broker may do: there is no secret to print.
async fn grant_user(user: &str, grant: Grant, store: &StoreArgs) -> Result<(), Failure> {
    if Principal::new(format!("user:{user}")).is_err() {
        let message = format!("`{user}` cannot be a principal's name");
        return Err(Failure::usage(message).and("use letters, digits and ._@+- alone"));
    }
    let who = grant.principal.clone();
    let tokens = Tokens::new(stores::engine(store).await?);
    match tokens.grant_amqp(user, grant).await.map_err(stores::failure)? {
        Some(id) => {
            look::line(&format!("{id}: messages of the broker's user `{user}` are by {who}"))?;
            Ok(())
        }
        None => {
            let message = format!("something is granted to the broker's user `{user}` already");
            Err(Failure::new(message).and("revoke it first; see: standfast token list"))
        }
    }
}

/// Opens what there is: looking makes no state.
async fn existing(store: &StoreArgs) -> Result<Tokens, Failure> {
    if store.redis.is_none() {
        demand_state(&store.data, "a store with --redis")?;
    }
    Ok(Tokens::new(stores::engine(store).await?))
}

async fn list(args: ListArgs) -> Result<(), Failure> {
    let tokens = existing(&args.store).await?;
    let tokens = tokens.list().await.map_err(stores::failure)?;
    if args.json {
        return look::json(&json!({ "tokens": tokens.iter().map(shown).collect::<Vec<_>>() }));
    }
    if tokens.is_empty() {
        look::note("no tokens");
    }
    let look = Look::of_stdout();
    let columns = [("TOKEN", 16), ("ROLES", 24), ("PRINCIPAL", 40), ("GROUPS", 40)];
    let more = [("CEILING", 8), ("MADE", 40), ("EXPIRES", 40), ("LABEL", usize::MAX)];
    let columns = [&columns[..], &more].concat();
    let mut table = Table::new(&columns);
    for token in &tokens {
        table.row(vec![
            token.id.clone(),
            roles(token).join(", "),
            match token.amqp_user() {
                Some(user) => format!("{} (broker's user {user})", token.principal),
                None => token.principal.to_string(),
            },
            token.groups.iter().map(Principal::to_string).collect::<Vec<_>>().join(", "),
            if token.ceiling.is_open() { "none" } else { "yes" }.to_owned(),
            when_both(&token.created_at.rfc3339(), &look),
            token.expires_at.map(|at| when_both(&at.rfc3339(), &look)).unwrap_or_default(),
            token.label.clone(),
        ]);
    }
    look::lines(table.lines(&look))
}

fn roles(token: &Token) -> Vec<&'static str> {
    token.roles.iter().map(|role| role.as_str()).collect()
}

/// What is kept of a token, its digest excepted: that is nobody's business.
fn shown(token: &Token) -> Value {
    json!({
        "id": token.id,
        "principal": token.principal,
        "roles": roles(token),
        "groups": token.groups,
        "ceiling": token.ceiling,
        "amqp_user": token.amqp_user(),
        "label": token.label,
        "created_at": token.created_at.rfc3339(),
        "expires_at": token.expires_at.map(|at| at.rfc3339()),
    })
}

async fn revoke(args: RevokeArgs) -> Result<Exit, Failure> {
    let tokens = existing(&args.store).await?;
    if tokens.revoke(&args.id).await.map_err(stores::failure)? {
        look::line(&format!("token {} is revoked", args.id))?;
        return Ok(Exit::Completed);
    }
    Err(Failure::new(format!("there is no token `{}`", args.id)).and("see: standfast token list"))
}
