//! What a store that answers before a write is on disk may not be trusted with.

use serde_json::{Value, json};
use standfast_domain::record::EffectClass;

use crate::support::{Server, over_redis, plan, step};

fn declaring(class: EffectClass) -> Value {
    let mut step = step(class.as_str(), &[], "true");
    step["effect"] = json!({"class": class.as_str()});
    if class == EffectClass::Checkable {
        step["effect"]["check"] = json!({"uses": "exec", "with": {"command": ["true"]}});
    }
    step
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_that_need_an_intent_are_refused_by_a_store_that_may_lose_it() {
    let (place, _directory, world) = over_redis().await;
    let server = Server::start(&world).await;
    let mut body = plan(EffectClass::ALL.map(declaring).to_vec());
    let mut last = declaring(EffectClass::Irreversible);
    last["id"] = json!("last");
    body["finally"] = json!([last]);
    let refused = server.submit(&body).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(refused.pointers(), ["/steps/2/effect", "/steps/3/effect", "/finally/0/effect"]);
    for words in ["appendfsync always", "--accept-relaxed-durability"] {
        assert!(refused.text.contains(words), "{refused:?}");
    }
    let harmless = [EffectClass::None, EffectClass::Idempotent].map(declaring).to_vec();
    server.submit(&plan(harmless)).await.task();
    world.engine.accept_relaxed_durability();
    server.submit(&body).await.task();
    server.stop().await;
    place.clean(&[]).await;
}
